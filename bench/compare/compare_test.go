package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func TestMain(m *testing.M) {
	kit.ServeIfAsked()
	serveIfAsked()
	status := m.Run()
	if shared.world != nil {
		if err := shared.world.close(); err != nil {
			panic(err)
		}
	}
	os.Exit(status)
}

// shared are the servers of all tests.
var shared struct {
	once  sync.Once
	world *world
	err   error
}

func theWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts servers")
	}
	kit.Need(t, "redis-server", "initdb")
	shared.once.Do(func() { shared.world, shared.err = openWorld(context.Background()) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// The table of docs/comparison.md is what this program prints.
func TestCompare_ThePageHasTheTable(t *testing.T) {
	t.Parallel()
	w := theWorld(t)
	page, err := os.ReadFile("../../docs/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := w.table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n\n"+table+"\n") {
		t.Errorf("docs/comparison.md lacks this table:\n%s", table)
	}
}

// A Deduplicator without fields takes equal payloads for one message, and gives a repository 5 ms.
func TestDeduplicator_AsItComes(t *testing.T) {
	t.Parallel()
	runs := 0
	dedup := &middleware.Deduplicator{}
	handle := dedup.Middleware(func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, nil
	})
	for _, id := range []string{"one", "another"} {
		if _, err := handle(message.NewMessage(id, []byte("12"))); err != nil {
			t.Fatal(err)
		}
	}
	if runs != 1 || dedup.Timeout != 5*time.Millisecond {
		t.Errorf("%d runs of two messages, timeout %v; want 1 and 5ms", runs, dedup.Timeout)
	}
}
