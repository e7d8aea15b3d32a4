package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Duplicates that the cache answers say nothing of Redis.
func TestGuard_OutageOfRedisIsToldOnceThoughTheCacheAnswers(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s := must(New(impatient(t, server.Addr), Config{Prefix: "test-" + ids.New(), CacheEntries: 10}))(t)
	var log bytes.Buffer
	g, err := oncemill.NewGuard(s, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	run := func(id string) error {
		_, err := g.Run(t.Context(), oncemill.Call{Key: key(id)}, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, nil
		})
		return err
	}
	told := func(down, back int) {
		t.Helper()
		if strings.Count(log.String(), "the store is down") != down || strings.Count(log.String(), "the store answers again") != back {
			t.Errorf("logged:\n%s\nwant %d times that the store is down and %d times that it answers again", log.String(), down, back)
		}
	}
	for range 2 { // the duplicate fills the cache
		if err := run("done"); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	for n, start := 0, time.Now(); n < 100 || time.Since(start) < 2*time.Second; n++ {
		if err := run("done"); err != nil {
			t.Fatal("a duplicate that the cache knows: ", err)
		}
		if err := run(fmt.Sprint("new ", n)); err == nil {
			t.Fatal("ran without Redis")
		}
	}
	told(1, 0)
	server.Restart()
	for deadline := time.Now().Add(30 * time.Second); run("after") != nil; {
		if time.Now().After(deadline) {
			t.Fatal("nothing runs again")
		}
		_ = run("done")
	}
	told(1, 1)
}

// What this process knows to be done is not run because Redis is down.
func TestGuard_DuplicatesThatTheCacheKnowsDoNotRunUnderFailOpen(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s := must(New(impatient(t, server.Addr), Config{Prefix: "test-" + ids.New(), CacheEntries: 10}))(t)
	g, err := oncemill.NewGuard(s, oncemill.Policy{StoreDown: oncemill.FailOpen, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]int{}
	run := func(id string) {
		t.Helper()
		_, err := g.Run(t.Context(), oncemill.Call{Key: key(id)}, func(context.Context) (dedupstore.Outcome, error) {
			ran[id]++
			return dedupstore.Outcome{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	run("done")
	run("done") // fills the cache
	server.Kill()
	for n, start := 0, time.Now(); n < 100 || time.Since(start) < time.Second; n++ {
		run("new")
		run("newer")
		run("done")
	}
	if ran["done"] != 1 || ran["new"] < 100 {
		t.Errorf("ran %v, want one run of what the cache knows, and all others unguarded", ran)
	}
}
