// Creates records and gets them without a pause until its standard input ends, then prints how
// many it created, and how calls ended that failed.
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Sends a message to a method and returns its reply.
type caller func(method string, request []byte) ([]byte, error)

func main() {
	protocol, target, caFile := os.Args[1], os.Args[2], os.Args[4]
	request, err := hex.DecodeString(os.Args[3])
	check(err)
	var encryption *tls.Config
	if caFile != "" {
		ca, err := os.ReadFile(caFile)
		check(err)
		encryption = &tls.Config{RootCAs: x509.NewCertPool()}
		encryption.RootCAs.AppendCertsFromPEM(ca)
	}
	call := map[string]func(string, *tls.Config) caller{"grpc": byGrpc, "connect": byConnect}[protocol](target, encryption)
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
				record, err := call("CreateInvestor", request)
				if err == nil {
					// The id is the first field of the record, and the only one of the request.
					_, err = call("GetInvestor", record[:38])
				}
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

// Messages that nobody decodes.
type raw struct{}

func (raw) Name() string                        { return "proto" }
func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func byGrpc(target string, encryption *tls.Config) caller {
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
	reconnect := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 200 * time.Millisecond}
	client, err := grpc.NewClient("services:///",
		grpc.WithResolvers(services),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(channel),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// Both may be gone for a client that has not found the first one again.
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.WaitForReady(true)))
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
