// Uploads 10 MB at 100 KB a second, as often at once as asked, and prints the statuses as JSON.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

type slow struct {
	start time.Time
	left  int
}

func (s *slow) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Until(s.start.Add(time.Duration(10_000_000-s.left) * 10 * time.Microsecond)))
	n := copy(p, bytes.Repeat([]byte("x"), min(10_000, s.left)))
	s.left -= n
	return n, nil
}

func upload(client *http.Client, url, token string) any {
	request, err := http.NewRequest("POST", url, &slow{time.Now(), 10_000_000})
	if err != nil {
		return err.Error()
	}
	request.ContentLength = 10_000_000
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer reply.Body.Close()
	if _, err := io.ReadAll(reply.Body); err != nil {
		return err.Error()
	}
	return reply.StatusCode
}

func main() {
	url, token, ca := os.Args[1], os.Args[2], os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	roots := x509.NewCertPool()
	if pem, err := os.ReadFile(ca); err == nil {
		roots.AppendCertsFromPEM(pem)
	}
	statuses := make(chan any)
	for range count {
		go func() {
			transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
			statuses <- upload(&http.Client{Transport: transport}, url, token)
		}()
	}
	all := []any{}
	for range count {
		all = append(all, <-statuses)
	}
	text, _ := json.Marshal(all)
	fmt.Println(string(text))
}
