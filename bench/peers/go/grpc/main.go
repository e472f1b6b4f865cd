// What one would write in Go: grpc-go and one statement a call, on MongoDB by the official
// driver or on SQLite. Started with the URL of a database; prints the port that it serves on.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "investor-records/bench/gen/investor/v1"
)

// records keeps records as durably as the service that is measured beside it.
type records interface {
	insert(ctx context.Context, id uuid.UUID, investor *pb.Investor) error
	// find returns nil if there is no such record.
	find(ctx context.Context, id uuid.UUID) (*pb.Investor, error)
}

type service struct {
	pb.UnimplementedInvestorServiceServer
	records records
}

func (s *service) CreateInvestor(ctx context.Context, request *pb.CreateInvestorRequest) (*pb.Investor, error) {
	if err := validate(request); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	investor := &pb.Investor{
		Id:           id.String(),
		Type:         *request.Type,
		FirstName:    *request.FirstName,
		MiddleName:   *request.MiddleName,
		LastName:     *request.LastName,
		AddressLine1: *request.AddressLine1,
		AddressLine2: *request.AddressLine2,
		City:         *request.City,
		State:        *request.State,
		ZipCode:      *request.ZipCode,
		Country:      *request.Country,
		Language:     *request.Language,
	}
	if err := s.records.insert(ctx, id, investor); err != nil {
		return nil, err
	}
	return investor, nil
}

func (s *service) GetInvestor(ctx context.Context, request *pb.GetInvestorRequest) (*pb.Investor, error) {
	id, err := uuid.Parse(request.Id)
	if err != nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	investor, err := s.records.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if investor == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return investor, nil
}

func main() {
	records, err := open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterInvestorServiceServer(server, &service{records: records})
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(server.Serve(listener))
}

func open(url string) (records, error) {
	if path, found := strings.CutPrefix(url, "sqlite:"); found {
		return openSQLite(path)
	}
	return openMongoDB(url)
}
