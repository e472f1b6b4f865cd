// For each line of its standard input, a request in hexadecimal, creates a record and gets it, and
// prints its id or how the call failed.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Sends a message to a method and returns its reply.
type caller func(method string, request []byte) ([]byte, error)

func main() {
	protocol, target, configFile, caFile := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	config, err := os.ReadFile(configFile)
	check(err)
	var encryption *tls.Config
	if caFile != "" {
		ca, err := os.ReadFile(caFile)
		check(err)
		encryption = &tls.Config{RootCAs: x509.NewCertPool()}
		encryption.RootCAs.AppendCertsFromPEM(ca)
	}
	call := byConnect(target, encryption)
	if protocol == "grpc" {
		call = byGrpc(target, encryption, string(config))
	}
	requests := make(chan []byte)
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for request := range requests {
				record, err := call("CreateInvestor", request)
				if err == nil {
					// The id is the first field of the record, and the only one of the request.
					_, err = call("GetInvestor", record[:38])
				}
				line := fmt.Sprintln(err)
				if err == nil {
					line = string(record[2:38]) + "\n"
				}
				os.Stdout.WriteString(line)
			}
		})
	}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		request, err := hex.DecodeString(input.Text())
		check(err)
		requests <- request
	}
	close(requests)
	running.Wait()
}

// Messages that nobody decodes.
type raw struct{}

func (raw) Name() string                        { return "proto" }
func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func byGrpc(target string, encryption *tls.Config, config string) caller {
	addresses := []resolver.Address{}
	for address := range strings.SplitSeq(target, ",") {
		addresses = append(addresses, resolver.Address{Addr: address})
	}
	services := manual.NewBuilderWithScheme("services")
	services.InitialState(resolver.State{Addresses: addresses})
	channel := insecure.NewCredentials()
	if encryption != nil {
		channel = credentials.NewTLS(encryption)
	}
	client, err := grpc.NewClient("services:///",
		grpc.WithResolvers(services),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(channel),
		grpc.WithDefaultServiceConfig(config),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	check(err)
	return func(method string, request []byte) ([]byte, error) {
		var reply []byte
		err := client.Invoke(context.Background(), "/investor.v1.InvestorService/"+method, &request, &reply)
		return reply, err
	}
}

// Over HTTP/2.
func byConnect(target string, encryption *tls.Config) caller {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: encryption, ForceAttemptHTTP2: true}}
	return func(method string, request []byte) ([]byte, error) {
		url := target + "/investor.v1.InvestorService/" + method
		reply, err := client.Post(url, "application/proto", bytes.NewReader(request))
		if err != nil {
			return nil, err
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err == nil && (reply.StatusCode != 200 || reply.ProtoMajor != 2) {
			err = fmt.Errorf("%s %s: %s", reply.Proto, reply.Status, body)
		}
		return body, err
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
