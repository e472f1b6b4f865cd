import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import investor.v1.CreateInvestorRequest;
import investor.v1.GetInvestorRequest;
import investor.v1.InvestorServiceGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;

/** Calls the service by gRPC as main.go does: for each line of standard input. */
public class Callers {
  public static void main(String[] args) throws Exception {
    Map<String, ?> config = new Gson().fromJson(new FileReader(args[1]), new TypeToken<>() {});
    ManagedChannel channel =
        Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create())
            .defaultServiceConfig(config)
            .build();
    var stub = InvestorServiceGrpc.newBlockingStub(channel);
    var input = new BufferedReader(new InputStreamReader(System.in));
    Thread[] callers = new Thread[16];
    for (int i = 0; i < callers.length; i++) {
      callers[i] =
          new Thread(
              () -> {
                String line;
                while ((line = readLine(input)) != null) {
                  byte[] bytes = HexFormat.of().parseHex(line);
                  try {
                    String id = stub.createInvestor(CreateInvestorRequest.parseFrom(bytes)).getId();
                    stub.getInvestor(GetInvestorRequest.newBuilder().setId(id).build());
                    System.out.println(id);
                  } catch (Exception error) {
                    System.out.println(error.getMessage());
                  }
                }
              });
      callers[i].start();
    }
    for (Thread caller : callers) caller.join();
    channel.shutdownNow();
  }

  private static String readLine(BufferedReader input) {
    try {
      return input.readLine();
    } catch (java.io.IOException error) {
      return null;
    }
  }
}
