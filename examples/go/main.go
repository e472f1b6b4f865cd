package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	investorv1 "example/gen/investor/v1"
)

func main() {
	address := "localhost:8080"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(address); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	// By it, gRPC repeats each call, which survives a restart of the service within its deadline of
	// 30 seconds. A create is safe to repeat by its request id.
	config, err := os.ReadFile("../../proto/investor/v1/investor_grpc_service_config_with_request_ids.json")
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(string(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := investorv1.NewInvestorServiceClient(conn)
	ctx := context.Background()
	request := &investorv1.CreateInvestorRequest{
		Type:         investorv1.InvestorType_INVESTOR_TYPE_INDIVIDUAL,
		FirstName:    "Ada",
		LastName:     "Lovelace",
		AddressLine1: "12 St James Square",
		City:         "London",
		ZipCode:      "SW1Y 4JH",
		Country:      "gb",
		Language:     "en",
		RequestId:    uuid.Must(uuid.NewV7()).String(),
	}
	created, err := client.CreateInvestor(ctx, request)
	if err != nil {
		return err
	}
	fmt.Println("created", created.Id)

	// With the same request id and content, a repeated call returns the record that is there.
	replayed, err := client.CreateInvestor(ctx, request)
	if err != nil {
		return err
	}
	fmt.Println("replayed", replayed.Id)

	request.Country = "England"
	_, err = client.CreateInvestor(ctx, request)
	if err == nil {
		return errors.New("the country was accepted")
	}
	refusal := status.Convert(err)
	for _, detail := range refusal.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Println("refused:", detail.Reason)
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				fmt.Printf("%s: %s\n", violation.Field, violation.Description)
			}
		}
	}

	count := 0
	list := &investorv1.ListInvestorsRequest{}
	for {
		page, err := client.ListInvestors(ctx, list)
		if err != nil {
			return err
		}
		count += len(page.Investors)
		if page.NextPageToken == "" {
			break
		}
		list.PageToken = page.NextPageToken
	}
	fmt.Println("listed", count)
	return nil
}
