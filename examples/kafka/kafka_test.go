package main

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop/shoptest"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKafka_BooksBalance(t *testing.T) { shoptest.BooksBalance(t, example) }

func TestKafka_BrokenGuardShowsInTheBooks(t *testing.T) { shoptest.BrokenGuardShows(t, example) }

func TestKafka_OnServersLeavesNothingBehind(t *testing.T) {
	server := kafkatest.Shared(t)
	admin := kadm.NewClient(server.Client())
	before, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, status := shoptest.Play(t, example, "-orders", "60", "-brokers", server.Addr, "-redis", shoptest.RedisURL(t))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v", status, b)
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

func TestKafka_MistakesAreNamed(t *testing.T) { shoptest.MistakesAreNamed(t, example, "127.0.0.1:1") }
