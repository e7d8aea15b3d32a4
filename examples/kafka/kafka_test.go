package main

import (
	"bytes"
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play runs the example, and returns its books, its exit status and what it says to people.
func play(t *testing.T, e billing.Example, args ...string) (b billing.Books, status int, says string) {
	t.Helper()
	e.Books = func(closed billing.Books) { b = closed }
	var stdout, stderr bytes.Buffer
	status = e.Main(t.Context(), args, &stdout, &stderr)
	return b, status, stderr.String()
}

func redisURL(t *testing.T) string {
	t.Helper()
	server := redistest.Start(t)
	return cmp.Or(os.Getenv("ONCEMILL_TEST_REDIS"), "redis://"+server.Addr)
}

func TestKafka_BooksBalance(t *testing.T) {
	orders := "100"
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		orders = "5000"
	}
	b, status, says := play(t, example, "-embedded", "-orders", orders)
	if status != 0 || !b.Balance() || !strings.Contains(says, "the next one starts") {
		t.Errorf("status %d, %+v; want 0 and balanced books\n%s", status, b, says)
	}
	if b.Copies == 0 || b.Retries == 0 || b.Suppressed < b.Copies || b.DeadLetters == 0 {
		t.Errorf("%+v; want everything to have happened", b)
	}
}

func TestKafka_OnServersLeavesNothingBehind(t *testing.T) {
	server := kafkatest.Shared(t)
	admin := kadm.NewClient(server.Client())
	before, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, status, says := play(t, example, "-orders", "60", "-brokers", server.Addr, "-redis", redisURL(t))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v\n%s", status, b, says)
	}
	after, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range after.Names() {
		if !before.Has(topic) {
			t.Errorf("topic %s is left", topic)
		}
	}
}

// A store that remembers nothing: the books must tell.
func TestKafka_BrokenGuardShowsInTheBooks(t *testing.T) {
	e := example
	e.Wrap = func(s dedupstore.Store) dedupstore.Store { return consumertest.Forgetful{Store: s} }
	b, status, says := play(t, e, "-embedded", "-orders", "60")
	if status != 1 || b.Balance() || b.DoubleCharges == 0 {
		t.Errorf("status %d, %+v; want 1 and double charges\n%s", status, b, says)
	}
}

// The other mistakes are those of examples/nats.
func TestKafka_MistakesAreNamed(t *testing.T) {
	for says, args := range map[string][]string{
		"-brokers has no use":    {"-brokers", "127.0.0.1:1", "-embedded"},
		"-brokers 127.0.0.1:1 c": {"-brokers", "127.0.0.1:1", "-redis", redisURL(t)},
	} {
		if b, status, said := play(t, example, args...); status == 0 || b.Orders > 0 || !strings.Contains(said, says) {
			t.Errorf("%v: status %d, %q; want it to say %q", args, status, said, says)
		}
	}
}
