package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	investorv1 "example/gen/investor/v1"
)

func main() {
	address := "localhost:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(address); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := investorv1.NewInvestorServiceClient(conn)

	// One deadline for all of it; derive one per call in a longer program.
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()

	request := &investorv1.CreateInvestorRequest{
		Type:         investorv1.InvestorType_INVESTOR_TYPE_INDIVIDUAL.Enum(),
		FirstName:    proto.String("Ada"),
		MiddleName:   proto.String(""),
		LastName:     proto.String("Lovelace"),
		AddressLine1: proto.String("12 St James Square"),
		AddressLine2: proto.String(""),
		City:         proto.String("London"),
		State:        proto.String(""),
		ZipCode:      proto.String("SW1Y 4JH"),
		Country:      proto.String("gb"),
		Language:     proto.String("en"),
		RequestId:    proto.String(uuid.Must(uuid.NewV7()).String()),
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

	request.Country = proto.String("England")
	_, err = client.CreateInvestor(ctx, request)
	if err == nil {
		return errors.New("the country was accepted")
	}
	refusal := status.Convert(err)
	fmt.Println("refused:", refusal.Message())
	for _, detail := range refusal.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Println("reason:", detail.Reason)
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
