package main

import (
	"testing"

	"github.com/oncemill/oncemill/examples/internal/shop/shoptest"
	"github.com/oncemill/oncemill/internal/testserver"
)

func TestMain(m *testing.M) { shoptest.Main(m, example) }

func TestNATS_BooksBalance(t *testing.T) { shoptest.BooksBalance(t, example) }

func TestNATS_BrokenGuardShowsInTheBooks(t *testing.T) { shoptest.BrokenGuardShows(t, example) }

func TestNATS_ProcessesOfTheirOwnAndRedis(t *testing.T) {
	shoptest.Processes(t, "-nats", testserver.NATS(t).URL(), "-redis", shoptest.RedisURL(t))
}

func TestNATS_BothRolesOnServersLeaveNothingBehind(t *testing.T) {
	servers := testserver.NATS(t)
	b, status := shoptest.Play(t, example, "-orders", "60", "-nats", servers.URL(), "-redis", shoptest.RedisURL(t))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v", status, b)
	}
	for name := range servers.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
}

func TestNATS_MistakesAreNamed(t *testing.T) {
	shoptest.MistakesAreNamed(t, example, map[string][]string{
		"-nats is \"http://":    {"-nats", "http://127.0.0.1:4222"},
		"-nats is \"127.0.0.1":  {"-nats", "127.0.0.1"},
		"-nats has no use with": {"-nats", "nats://127.0.0.1:4222", "-embedded"},
	})
}

func TestNATS_UnreachableServersAreNamed(t *testing.T) {
	shoptest.NoServerIsSaid(t, example, "-nats", "nats://127.0.0.1:1", "-redis", shoptest.RedisURL(t))
	shoptest.NoServerIsSaid(t, example, "-redis", "redis://ann:secret@127.0.0.1:1", "-nats", "nats://127.0.0.1:1")
}
