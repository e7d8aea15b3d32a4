package natskv

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "4") // they wait most of the time, but clusters elect leaders
	leaktest.Main(m)
}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") != ""

// newStore makes a bucket of a stream, and its store.
func newStore(t testing.TB, js jetstream.JetStream, c jetstream.StreamConfig) *Store {
	t.Helper()
	natstest.Ask(t, "a bucket", func(ctx context.Context) (jetstream.Stream, error) { return js.CreateStream(ctx, c) })
	return storeOf(t, js, c.Name[len("KV_"):])
}

func storeOf(t testing.TB, js jetstream.JetStream, bucket string) *Store {
	t.Helper()
	s, err := New(js, Config{Bucket: bucket})
	if err != nil {
		t.Fatal(err)
	}
	s.warned.Store(true) // tests have one replica
	return s
}

var (
	key       = claimtest.Key
	request   = claimtest.Request
	claim     = claimtest.Claim
	settle    = claimtest.Settle
	succeeded = claimtest.Succeeded
)
