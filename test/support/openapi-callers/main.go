// Command openapi-callers creates a record by the client that is generated from openapi.json.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"openapi-callers/client"
)

func main() {
	investors, err := client.NewClientWithResponses(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	content := client.InvestorContent{
		Type: client.Institution, LastName: "Example Capital", AddressLine1: "1 Main Street",
		City: "Springfield", State: "IL", ZipCode: "62701", Country: "us", Language: "en",
	}
	response, err := investors.CreateInvestorWithResponse(context.Background(), nil, content)
	if err != nil {
		log.Fatal(err)
	}
	if response.JSON200 == nil {
		log.Fatal(response.Status())
	}
	fmt.Println(response.JSON200.Type, response.JSON200.LastName)
}
