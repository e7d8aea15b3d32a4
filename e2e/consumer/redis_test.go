package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestProcess_RedisDownAtStartAndInFlight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	server.Kill() // down at start
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialTimeout: time.Second})
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := newProcessor(t, store, consumer.Config{MaxWait: 200 * time.Millisecond, Policy: oncemill.Policy{Lease: 5 * time.Second}})
	runs := 0
	handle := func(context.Context) error { runs++; return nil }

	d := p.Process(t.Context(), delivery("o1"), handle)
	answertest.Want(t, d.Err, oncemill.StatusStoreDown)
	if d.Action != consumer.RetryLater || d.Delay <= 0 || runs != 0 {
		t.Fatalf("Redis down at start: %+v after %d runs, want a delayed retry and none", d, runs)
	}
	server.Restart()
	redelivered := func(id string, handle consumer.Handler) (d consumer.Decision) {
		for range 100 { // on a busy machine a claim may take longer than MaxWait
			if d = p.Process(t.Context(), delivery(id), handle); d.Action != consumer.RetryLater {
				break
			}
		}
		return d
	}
	if d := redelivered("o1", handle); d.Action != consumer.Ack || runs != 1 {
		t.Fatalf("Redis is back: %+v after %d runs, want work to resume by itself", d, runs)
	}

	server.Kill() // down in flight
	if d := p.Process(t.Context(), delivery("o2"), handle); d.Action != consumer.RetryLater || runs != 1 {
		t.Errorf("Redis down in flight: %+v after %d runs", d, runs)
	}
	server.Restart()
	process := server.Process()
	killed, decision := make(chan error, 1), make(chan consumer.Decision, 1)
	go func() {
		decision <- redelivered("o2", func(context.Context) error {
			runs++
			killed <- process.Kill() // down between effect and outcome
			return nil
		})
	}()
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	server.Restart()
	if d := <-decision; d.Action != consumer.Ack {
		t.Errorf("Redis restarted during the run: %+v, want the outcome stored once it was back", d)
	}
	if d := p.Process(t.Context(), delivery("o2"), handle); d.Action != consumer.Ack || !d.Result.Duplicate || runs != 2 {
		t.Errorf("duplicate: %+v after %d runs", d, runs)
	}
}
