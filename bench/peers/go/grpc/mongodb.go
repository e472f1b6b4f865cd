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
)

type mongoDB struct{ investors *mongo.Collection }

type document struct {
	ID      bson.Binary `bson:"_id"`
	Content *content    `bson:",inline"`
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

func (m *mongoDB) insert(ctx context.Context, id uuid.UUID, content *content) error {
	_, err := m.investors.InsertOne(ctx, &document{toKey(id), content})
	return err
}

func (m *mongoDB) find(ctx context.Context, id uuid.UUID) (*content, error) {
	var found content
	err := m.investors.FindOne(ctx, bson.D{{Key: "_id", Value: toKey(id)}}).Decode(&found)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &found, err
}

func toKey(id uuid.UUID) bson.Binary {
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
}
