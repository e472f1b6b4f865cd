package main

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	pb "investor-records/bench/gen/investor/v1"
)

type mongoDB struct{ investors *mongo.Collection }

type document struct {
	ID           bson.Binary `bson:"_id"`
	Type         string      `bson:"type"`
	FirstName    string      `bson:"firstName"`
	MiddleName   string      `bson:"middleName"`
	LastName     string      `bson:"lastName"`
	AddressLine1 string      `bson:"addressLine1"`
	AddressLine2 string      `bson:"addressLine2"`
	City         string      `bson:"city"`
	State        string      `bson:"state"`
	ZipCode      string      `bson:"zipCode"`
	Country      string      `bson:"country"`
	Language     string      `bson:"language"`
}

func openMongoDB(url string) (*mongoDB, error) {
	location, err := connstring.Parse(url)
	if err != nil {
		return nil, err
	}
	journaled := true
	client, err := mongo.Connect(options.Client().ApplyURI(url).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journaled}).
		SetReadConcern(readconcern.Majority()))
	if err != nil {
		return nil, err
	}
	return &mongoDB{client.Database(location.Database).Collection("investors")}, nil
}

func (m *mongoDB) insert(ctx context.Context, id uuid.UUID, investor *pb.Investor) error {
	kind := "individual"
	if investor.Type == pb.InvestorType_INVESTOR_TYPE_INSTITUTION {
		kind = "institution"
	}
	_, err := m.investors.InsertOne(ctx, &document{
		ID:           toKey(id),
		Type:         kind,
		FirstName:    investor.FirstName,
		MiddleName:   investor.MiddleName,
		LastName:     investor.LastName,
		AddressLine1: investor.AddressLine1,
		AddressLine2: investor.AddressLine2,
		City:         investor.City,
		State:        investor.State,
		ZipCode:      investor.ZipCode,
		Country:      investor.Country,
		Language:     investor.Language,
	})
	return err
}

func (m *mongoDB) find(ctx context.Context, id uuid.UUID) (*pb.Investor, error) {
	var found document
	err := m.investors.FindOne(ctx, bson.D{{Key: "_id", Value: toKey(id)}}).Decode(&found)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	kind := pb.InvestorType_INVESTOR_TYPE_INDIVIDUAL
	if found.Type == "institution" {
		kind = pb.InvestorType_INVESTOR_TYPE_INSTITUTION
	}
	return &pb.Investor{
		Id:           id.String(),
		Type:         kind,
		FirstName:    found.FirstName,
		MiddleName:   found.MiddleName,
		LastName:     found.LastName,
		AddressLine1: found.AddressLine1,
		AddressLine2: found.AddressLine2,
		City:         found.City,
		State:        found.State,
		ZipCode:      found.ZipCode,
		Country:      found.Country,
		Language:     found.Language,
	}, nil
}

func toKey(id uuid.UUID) bson.Binary {
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
}
