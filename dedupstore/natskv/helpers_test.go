package natskv

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
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

func key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key: key(id), Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
	}
}

func claim(t testing.TB, s dedupstore.Store, r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	t.Helper()
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil || a.Status != want {
		t.Fatalf("claim was answered %s %+v, %v; want %s", a.Status, a, err, want)
	}
	return a
}

func settle(t testing.TB, s dedupstore.Store, c dedupstore.Claim, settlement dedupstore.Settlement) {
	t.Helper()
	if err := dedupstore.SettleOne(t.Context(), s, c, settlement); err != nil {
		t.Fatalf("settle with %T: %v", settlement, err)
	}
}

func succeeded(result string) dedupstore.Finish {
	return dedupstore.Finish{
		Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(result)},
	}
}
