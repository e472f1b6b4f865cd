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
	"sync"
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

func upload(url, token string, roots *x509.CertPool) any {
	request, _ := http.NewRequest("POST", url, &slow{time.Now(), 10_000_000})
	request.ContentLength = 10_000_000
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	reply, err := transport.RoundTrip(request)
	if err == nil {
		_, err = io.ReadAll(reply.Body)
	}
	if err != nil {
		return err.Error()
	}
	return reply.StatusCode
}

func main() {
	url, token, ca := os.Args[1], os.Args[2], os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	roots := x509.NewCertPool()
	pem, _ := os.ReadFile(ca)
	roots.AppendCertsFromPEM(pem)
	all := make([]any, count)
	var running sync.WaitGroup
	for i := range count {
		running.Go(func() { all[i] = upload(url, token, roots) })
	}
	running.Wait()
	text, _ := json.Marshal(all)
	fmt.Println(string(text))
}
