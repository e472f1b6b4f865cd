import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import investor.v1.CreateInvestorRequest;
import investor.v1.Investor;
import investor.v1.InvestorServiceGrpc;
import investor.v1.InvestorServiceGrpc.InvestorServiceBlockingStub;
import investor.v1.InvestorType;
import investor.v1.ListInvestorsRequest;
import investor.v1.ListInvestorsResponse;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

public class Investors {
  /**
   * By it, gRPC repeats each call, which survives a restart of the service within its deadline of 30
   * seconds. A create is safe to repeat by its request id.
   */
  private static final Path CONFIG =
      Path.of("../../proto/investor/v1/investor_grpc_service_config_with_request_ids.json");

  private final InvestorServiceBlockingStub stub;

  private Investors(ManagedChannel channel) {
    stub = InvestorServiceGrpc.newBlockingStub(channel);
  }

  /** A UUID of version 7 (RFC 9562), which the JDK does not make. */
  private static UUID newUuid() {
    UUID random = UUID.randomUUID();
    long high = (System.currentTimeMillis() << 16) | 0x7000 | (random.getMostSignificantBits() & 0xfff);
    return new UUID(high, random.getLeastSignificantBits());
  }

  public static void main(String[] args) throws Exception {
    String address = args.length > 0 ? args[0] : "localhost:8080";
    Map<String, ?> config = new Gson().fromJson(Files.readString(CONFIG), new TypeToken<>() {});
    ManagedChannel channel =
        Grpc.newChannelBuilder(address, InsecureChannelCredentials.create())
            .defaultServiceConfig(config)
            .build();
    try {
      new Investors(channel).run();
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  private void run() throws InvalidProtocolBufferException {
    CreateInvestorRequest ada =
        CreateInvestorRequest.newBuilder()
            .setType(InvestorType.INVESTOR_TYPE_INDIVIDUAL)
            .setFirstName("Ada")
            .setLastName("Lovelace")
            .setAddressLine1("12 St James Square")
            .setCity("London")
            .setZipCode("SW1Y 4JH")
            .setCountry("gb")
            .setLanguage("en")
            .setRequestId(newUuid().toString())
            .build();
    Investor created = stub.createInvestor(ada);
    System.out.println("created " + created.getId());

    // With the same request id and content, a repeated call returns the record that is there.
    Investor replayed = stub.createInvestor(ada);
    System.out.println("replayed " + replayed.getId());

    try {
      stub.createInvestor(ada.toBuilder().setCountry("England").build());
    } catch (StatusRuntimeException error) {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          System.out.println("refused: " + detail.unpack(ErrorInfo.class).getReason());
        } else if (detail.is(BadRequest.class)) {
          for (var violation : detail.unpack(BadRequest.class).getFieldViolationsList()) {
            System.out.println(violation.getField() + ": " + violation.getDescription());
          }
        }
      }
    }

    int count = 0;
    String pageToken = "";
    do {
      ListInvestorsResponse page =
          stub.listInvestors(ListInvestorsRequest.newBuilder().setPageToken(pageToken).build());
      count += page.getInvestorsCount();
      pageToken = page.getNextPageToken();
    } while (!pageToken.isEmpty());
    System.out.println("listed " + count);
  }
}
