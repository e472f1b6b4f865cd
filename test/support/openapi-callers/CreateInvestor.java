import org.openapitools.client.ApiClient;
import org.openapitools.client.api.InvestorsApi;
import org.openapitools.client.model.Investor;
import org.openapitools.client.model.InvestorContent;
import org.openapitools.client.model.InvestorType;

/** Creates a record by the client that is generated from openapi.json. */
public class CreateInvestor {
  public static void main(String[] args) throws Exception {
    InvestorContent content =
        new InvestorContent()
            .type(InvestorType.INSTITUTION)
            .firstName("")
            .middleName("")
            .lastName("Example Capital")
            .addressLine1("1 Main Street")
            .addressLine2("")
            .city("Springfield")
            .state("IL")
            .zipCode("62701")
            .country("us")
            .language("en");
    ApiClient client = new ApiClient();
    client.updateBaseUri(args[0]);
    Investor investor = new InvestorsApi(client).createInvestor(content, null);
    System.out.println(investor.getType() + " " + investor.getLastName());
  }
}
