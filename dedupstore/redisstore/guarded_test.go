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
	answered := 0
	for n, start := 0, time.Now(); n < 100 || time.Since(start) < 2*time.Second; n++ {
		if err := run("done"); err == nil {
			answered++
		}
		if err := run(fmt.Sprint("new ", n)); err == nil {
			t.Fatal("ran without Redis")
		}
	}
	told(1, 0)
	if answered == 0 {
		t.Error("no duplicate was answered")
	}
	server.Restart()
	for deadline := time.Now().Add(30 * time.Second); run("after") != nil; {
		if time.Now().After(deadline) {
			t.Fatal("nothing runs again")
		}
		_ = run("done")
	}
	told(1, 1)
}
