package main

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/examples/internal/shop/shoptest"
	"github.com/oncemill/oncemill/internal/testserver"
)

func TestMain(m *testing.M) { shoptest.Main(m, example) }

func TestKafka_BooksBalance(t *testing.T) { shoptest.BooksBalance(t, example) }

func TestKafka_BrokenGuardShowsInTheBooks(t *testing.T) { shoptest.BrokenGuardShows(t, example) }

func TestKafka_ProcessesOfTheirOwnAndRedis(t *testing.T) {
	shoptest.Processes(t, "-brokers", testserver.SharedKafka(t).Addr, "-redis", shoptest.RedisURL(t))
}

func TestKafka_BothRolesOnServersLeaveNothingBehind(t *testing.T) {
	server := testserver.SharedKafka(t)
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

func TestKafka_MistakesAreNamed(t *testing.T) {
	shoptest.MistakesAreNamed(t, example, map[string][]string{
		"-brokers has \"localhost\"": {"-brokers", "127.0.0.1:9092,localhost"},
		"-brokers has \"\"":          {"-brokers", ""},
		"-brokers has no use with":   {"-brokers", "127.0.0.1:9092", "-embedded"},
	})
}

func TestKafka_UnreachableServersAreNamed(t *testing.T) {
	shoptest.NoServerIsSaid(t, example, "-brokers", "127.0.0.1:1", "-redis", shoptest.RedisURL(t))
	shoptest.NoServerIsSaid(t, example, "-redis", "redis://ann:secret@127.0.0.1:1", "-brokers", "127.0.0.1:1")
}
