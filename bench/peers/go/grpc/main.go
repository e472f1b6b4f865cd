// What one would write first in Go: grpc-go and one statement a call, on MongoDB by the official
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
	insert(ctx context.Context, id uuid.UUID, content *content) error
	// find returns nil if there is no such record.
	find(ctx context.Context, id uuid.UUID) (*content, error)
}

type content struct {
	Type         pb.InvestorType `bson:"type"`
	FirstName    string          `bson:"firstName"`
	MiddleName   string          `bson:"middleName"`
	LastName     string          `bson:"lastName"`
	AddressLine1 string          `bson:"addressLine1"`
	AddressLine2 string          `bson:"addressLine2"`
	City         string          `bson:"city"`
	State        string          `bson:"state"`
	ZipCode      string          `bson:"zipCode"`
	Country      string          `bson:"country"`
	Language     string          `bson:"language"`
}

type service struct {
	pb.UnimplementedInvestorServiceServer
	records records
}

func (s *service) CreateInvestor(ctx context.Context, r *pb.CreateInvestorRequest) (*pb.Investor, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	created := &content{
		Type:         r.GetType(),
		FirstName:    r.GetFirstName(),
		MiddleName:   r.GetMiddleName(),
		LastName:     r.GetLastName(),
		AddressLine1: r.GetAddressLine1(),
		AddressLine2: r.GetAddressLine2(),
		City:         r.GetCity(),
		State:        r.GetState(),
		ZipCode:      r.GetZipCode(),
		Country:      r.GetCountry(),
		Language:     r.GetLanguage(),
	}
	if err := s.records.insert(ctx, id, created); err != nil {
		return nil, err
	}
	return toInvestor(id, created), nil
}

func (s *service) GetInvestor(ctx context.Context, r *pb.GetInvestorRequest) (*pb.Investor, error) {
	id, err := uuid.Parse(r.Id)
	if err != nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	found, err := s.records.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return toInvestor(id, found), nil
}

// ListInvestors returns the first page; on SQLite alone, whose table is that of the service.
func (s *service) ListInvestors(_ context.Context, r *pb.ListInvestorsRequest) (*pb.ListInvestorsResponse, error) {
	db, isSQLite := s.records.(*sqlite)
	if !isSQLite {
		return nil, status.Error(codes.Unimplemented, "no lists")
	}
	found, err := db.list(r.GetPageSize())
	return &pb.ListInvestorsResponse{Investors: found}, err
}

func toInvestor(id uuid.UUID, c *content) *pb.Investor {
	return &pb.Investor{
		Id:           id.String(),
		Type:         c.Type,
		FirstName:    c.FirstName,
		MiddleName:   c.MiddleName,
		LastName:     c.LastName,
		AddressLine1: c.AddressLine1,
		AddressLine2: c.AddressLine2,
		City:         c.City,
		State:        c.State,
		ZipCode:      c.ZipCode,
		Country:      c.Country,
		Language:     c.Language,
	}
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
