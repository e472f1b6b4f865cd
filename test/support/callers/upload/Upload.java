// Uploads 10 MB at 100 KB a second, as often at once as asked, and prints the statuses as JSON.
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Upload {
  static final int LENGTH = 10_000_000;

  static class Slow extends InputStream {
    final long start = System.nanoTime();
    int left = LENGTH;

    @Override
    public int read() {
      throw new UnsupportedOperationException();
    }

    @Override
    public int read(byte[] bytes, int at, int length) throws IOException {
      if (left == 0) return -1;
      try {
        long due = start + (LENGTH - left) * 10_000L;
        Thread.sleep(Math.max(0, (due - System.nanoTime()) / 1_000_000));
      } catch (InterruptedException e) {
        throw new IOException(e);
      }
      int count = Math.min(Math.min(length, 10_000), left);
      left -= count;
      return count;
    }
  }

  static SSLContext trust(String ca) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    try (InputStream pem = Files.newInputStream(Path.of(ca))) {
      store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
    }
    TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, factory.getTrustManagers(), null);
    return context;
  }

  static String upload(String url, String token, String ca) {
    try {
      HttpClient.Builder client = HttpClient.newBuilder();
      if (url.startsWith("https")) client.sslContext(trust(ca));
      HttpRequest.Builder request =
          HttpRequest.newBuilder(URI.create(url))
              .header("Content-Type", "application/json")
              .POST(BodyPublishers.fromPublisher(BodyPublishers.ofInputStream(Slow::new), LENGTH));
      if (!token.isEmpty()) request.header("Authorization", "Bearer " + token);
      return String.valueOf(client.build().send(request.build(), BodyHandlers.ofString()).statusCode());
    } catch (Exception e) {
      return '"' + e.toString().replace('"', '\'') + '"';
    }
  }

  public static void main(String[] args) throws Exception {
    int count = Integer.parseInt(args[3]);
    List<CompletableFuture<String>> uploads = new ArrayList<>();
    var executor = Executors.newFixedThreadPool(count);
    for (int i = 0; i < count; i += 1) {
      uploads.add(CompletableFuture.supplyAsync(() -> upload(args[0], args[1], args[2]), executor));
    }
    System.out.println(uploads.stream().map(CompletableFuture::join).toList());
    System.exit(0);
  }
}
