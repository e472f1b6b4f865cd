// Uploads 10 MB at 100 KB a second, as often at once as asked, and prints the statuses as JSON.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Upload {
  static byte[] part(long start, int i) {
    try {
      Thread.sleep(Math.max(0, start + 100L * i - System.currentTimeMillis()));
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
    return new byte[10_000];
  }

  static SSLContext trust(String ca) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    try (var pem = Files.newInputStream(Path.of(ca))) {
      store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
    }
    var factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, factory.getTrustManagers(), null);
    return context;
  }

  static String upload(String url, String token, String ca) {
    try {
      HttpClient client = HttpClient.newBuilder().sslContext(trust(ca)).build();
      long start = System.currentTimeMillis();
      Iterable<byte[]> parts = () -> IntStream.range(0, 1_000).mapToObj(i -> part(start, i)).iterator();
      HttpRequest.Builder request =
          HttpRequest.newBuilder(URI.create(url))
              .header("Content-Type", "application/json")
              .POST(BodyPublishers.fromPublisher(BodyPublishers.ofByteArrays(parts), 10_000_000));
      if (!token.isEmpty()) request.header("Authorization", "Bearer " + token);
      return String.valueOf(client.send(request.build(), BodyHandlers.ofString()).statusCode());
    } catch (Exception e) {
      return '"' + e.toString().replace('"', '\'') + '"';
    }
  }

  public static void main(String[] args) {
    int count = Integer.parseInt(args[3]);
    var executor = Executors.newFixedThreadPool(count);
    var uploads =
        IntStream.range(0, count)
            .mapToObj(i -> CompletableFuture.supplyAsync(() -> upload(args[0], args[1], args[2]), executor))
            .toList();
    System.out.println(uploads.stream().map(CompletableFuture::join).toList());
    System.exit(0);
  }
}
