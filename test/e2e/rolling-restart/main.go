// Calls the service without a pause until its standard input ends, then prints how many calls
// it made and how those ended that failed.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

const service = "/investor.v1.InvestorService/"

func main() {
	protocol, target, input := os.Args[1], os.Args[2], os.Args[3]
	callers := map[string]func(string, string) func() error{"grpc": byGrpc, "connect": byConnect}
	createAndGet := callers[protocol](target, input)
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var mutex sync.Mutex
	created, failures := 0, []string{}
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				err := createAndGet()
				mutex.Lock()
				if err == nil {
					created++
				} else {
					failures = append(failures, err.Error())
				}
				mutex.Unlock()
			}
		})
	}
	running.Wait()
	json.NewEncoder(os.Stdout).Encode(map[string]any{"created": created, "failures": failures})
}

// By gRPC, with messages that nobody decodes.
type raw struct{}

func (raw) Name() string                        { return "proto" }
func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func byGrpc(target, input string) func() error {
	request, err := hex.DecodeString(input)
	check(err)
	addresses := []resolver.Address{}
	for address := range strings.SplitSeq(target, ",") {
		addresses = append(addresses, resolver.Address{Addr: address})
	}
	services := manual.NewBuilderWithScheme("services")
	services.InitialState(resolver.State{Addresses: addresses})
	reconnect := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 200 * time.Millisecond}
	client, err := grpc.NewClient("services:///",
		grpc.WithResolvers(services),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// Both may be gone for a client that has not found the first one again.
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.WaitForReady(true)))
	check(err)
	call := func(method string, request []byte) ([]byte, error) {
		var reply []byte
		err := client.Invoke(context.Background(), service+method, &request, &reply)
		return reply, err
	}
	return func() error {
		created, err := call("CreateInvestor", request)
		if err != nil {
			return err
		}
		// The id is the first field of the record, and the only one of the request.
		_, err = call("GetInvestor", created[:38])
		return err
	}
}

// By Connect with JSON over HTTP/2.
func byConnect(target, input string) func() error {
	ca, err := os.ReadFile(os.Getenv("CA_FILE"))
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
	}
	client := &http.Client{Transport: transport}
	call := func(method string, request string) (string, error) {
		reply, err := client.Post(target+service+method, "application/json", strings.NewReader(request))
		if err != nil {
			return "", err
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err == nil && (reply.StatusCode != 200 || reply.ProtoMajor != 2) {
			err = fmt.Errorf("%s %s: %s", reply.Proto, reply.Status, body)
		}
		return string(body), err
	}
	return func() error {
		created, err := call("CreateInvestor", input)
		if err != nil {
			return err
		}
		var record struct{ Id string }
		check(json.Unmarshal([]byte(created), &record))
		_, err = call("GetInvestor", fmt.Sprintf(`{"id":%q}`, record.Id))
		return err
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
