package http_test

import (
	"bytes"
	"flag"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childStore) != "" {
		child()
		return
	}
	flag.Set("test.parallel", "8") // unless -parallel says otherwise: tests wait for clients that are gone, and for leases
	goleak.VerifyTestMain(m)
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
