package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop/shoptest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNATS_BooksBalance(t *testing.T) { shoptest.BooksBalance(t, example) }

func TestNATS_BrokenGuardShowsInTheBooks(t *testing.T) { shoptest.BrokenGuardShows(t, example) }

func TestNATS_OnServersLeavesNothingBehind(t *testing.T) {
	servers := natstest.Start(t)
	b, status := shoptest.Play(t, example, "-orders", "60", "-nats", servers.URL(), "-redis", shoptest.RedisURL(t))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v", status, b)
	}
	for name := range servers.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
}

func TestNATS_MistakesAreNamed(t *testing.T) {
	shoptest.MistakesAreNamed(t, example, "nats://127.0.0.1:1")
}
