package main

import (
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "investor-records/bench/gen/investor/v1"
)

// validate applies the rules of the contract, and reports all that is wrong at once.
func validate(r *pb.CreateInvestorRequest) error {
	var violations []*errdetails.BadRequest_FieldViolation
	note := func(field, description string) {
		if description != "" {
			violations = append(violations, &errdetails.BadRequest_FieldViolation{Field: field, Description: description})
		}
	}
	note("type", wrongType(r.Type))
	note("first_name", wrongText(r.FirstName))
	note("middle_name", wrongText(r.MiddleName))
	note("last_name", wrongText(r.LastName))
	note("address_line1", wrongText(r.AddressLine1))
	note("address_line2", wrongText(r.AddressLine2))
	note("city", wrongText(r.City))
	note("state", wrongText(r.State))
	note("zip_code", wrongText(r.ZipCode))
	note("country", wrongCode(r.Country))
	note("language", wrongCode(r.Language))
	note("request_id", wrongRequestID(r.RequestId))
	if violations == nil {
		return nil
	}
	refusal, err := status.New(codes.InvalidArgument, "invalid fields").
		WithDetails(&errdetails.BadRequest{FieldViolations: violations})
	if err != nil {
		return err
	}
	return refusal.Err()
}

func wrongType(value *pb.InvestorType) string {
	switch {
	case value == nil:
		return "is required"
	case *value != pb.InvestorType_INVESTOR_TYPE_INDIVIDUAL && *value != pb.InvestorType_INVESTOR_TYPE_INSTITUTION:
		return "must be individual or institution"
	}
	return ""
}

func wrongText(value *string) string {
	if value == nil {
		return "is required"
	}
	for _, point := range *value {
		if unicode.IsControl(point) {
			return "must not contain control characters"
		}
	}
	if len(*value) > 256 && utf8.RuneCountInString(*value) > 256 {
		return "must be at most 256 characters long"
	}
	return ""
}

func wrongCode(value *string) string {
	if value == nil {
		return "is required"
	}
	if len(*value) < 2 || len(*value) > 3 {
		return "must be two or three lower-case letters (a-z)"
	}
	for _, point := range *value {
		if point < 'a' || point > 'z' {
			return "must be two or three lower-case letters (a-z)"
		}
	}
	return ""
}

func wrongRequestID(value *string) string {
	if value == nil {
		return ""
	}
	if id, err := uuid.Parse(*value); err != nil || len(*value) != 36 || id == uuid.Nil || id == uuid.Max {
		return "must be a UUID, neither nil nor max"
	}
	return ""
}
