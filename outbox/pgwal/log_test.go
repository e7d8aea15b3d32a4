package pgwal_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_IdleOutboxRetainsNoLog(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.start()
	until(t, "a holder", func() bool { return g.holder() != 0 })
	before := g.slot("restart_lsn")
	for range 3 {
		g.exec(`INSERT INTO orders SELECT gen_random_uuid()::text FROM generate_series(1, 100)`)
		g.awaitConfirmed()
	}
	g.exec(`CHECKPOINT`) // writes what the server needs to begin later
	g.exec(`INSERT INTO orders VALUES ('last')`)
	g.awaitConfirmed()
	until(t, "restart_lsn to follow", func() bool { return g.slot("restart_lsn") != before })
}

func TestRelay_AnswersTheServerWhileThePublisherHangs(t *testing.T) {
	t.Parallel()
	const timeout = 5 * time.Second // an answer every 100 ms: the rest is the margin of a machine that is busy
	g := newRig(t, func(c *settings) {
		config := c.Pool.Config()
		config.ConnConfig.RuntimeParams["wal_sender_timeout"] = strconv.FormatInt(timeout.Milliseconds(), 10)
		c.Pool = postgrestest.Shared(t).Pool(t, func(p *pgxpool.Config) { *p = *config })
		c.BatchSize, c.MaxPending, c.MaxInFlight = 10, 10, 1
	})
	hang := make(chan struct{})
	g.broker.set(func(ctx context.Context, _ []producer.Message) error {
		select {
		case <-hang:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	g.start()
	n := 2500 // more than fits on the way: the server has to wait, too
	messages := numbered(n)
	for i := range messages {
		messages[i].Payload = make([]byte, 4<<10)
	}
	g.write(messages...)
	until(t, "a call", func() bool { return g.broker.attempts("order-00000") == 1 })
	holder := g.holder()
	lasts(3 * timeout / 2)
	if now := g.holder(); now != holder || holder == 0 {
		t.Errorf("the backend was %d and is %d: the server gave the relay up", holder, now)
	}
	close(hang)
	until(t, "all", func() bool { return len(g.broker.got()) == n })
}

func TestRelay_WarnsOfRetainedLog(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.WarnWAL = 1 })
	g.write(message("first"))
	g.start()
	until(t, "the warnings", func() bool {
		log := g.log.String()
		return strings.Contains(log, "max_slot_wal_keep_size is unlimited") && strings.Contains(log, "keep much log")
	})
	g.awaitConfirmed()
	if n := strings.Count(g.log.String(), "keep much log"); n != 1 {
		t.Errorf("%d warnings at once", n)
	}
}

func TestRelay_WarnsBeforeTheSlotIsLost(t *testing.T) {
	t.Parallel()
	g := newRigOn(t, postgrestest.Start(t, "max_slot_wal_keep_size=32"))
	g.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 20)`)
	g.start()
	until(t, "the warning", func() bool { return strings.Contains(g.log.String(), "keep much log") })
}

// In an outage each message is tried by a call of its own.
func TestRelay_AnOutageIsALineAMinute(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	away := func(context.Context, []producer.Message) error { return errors.New("broker is away") }
	g.broker.set(away)
	began := time.Now()
	stop := g.start()
	g.write(numbered(300)...)
	until(t, "many attempts", func() bool { return g.broker.attempts("order-00000") >= 5 && g.broker.attempts("order-00299") >= 5 })
	stop()
	lines, most := strings.Count(g.log.String(), "were not acknowledged"), 1+int(time.Since(began)/time.Minute)
	if lines == 0 || lines > most {
		t.Errorf("%d lines in %v, want 1 to %d", lines, time.Since(began), most)
	}
	if !strings.Contains(g.log.String(), "broker is away") {
		t.Error("the log does not say why")
	}
}

// What waits for an answer counts for MaxPending: nothing else is read when that is full.
func TestRelay_WarnsWhenWhatWaitsTakesAllItsMemory(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.BatchSize, c.MaxPending, c.StoreTimeout = 10, 20, 2*time.Second })
	var made atomic.Bool
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		var e producer.PublishError
		for i, m := range messages {
			if m.Topic == "never made" && !made.Load() {
				e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no such topic"), Unknown: true})
			}
		}
		if e.Failures == nil {
			return nil
		}
		return &e
	})
	const n = 700 // more than is read at once
	messages := numbered(n)
	for i := range messages {
		messages[i].Topic = "never made"
	}
	g.write(messages...)
	g.start()
	const warning = "nothing new is published: the memory is full"
	until(t, "a warning", func() bool { return strings.Contains(g.log.String(), warning) })
	made.Store(true)
	until(t, "all", func() bool { return len(g.broker.copies()) == n })
	if n := strings.Count(g.log.String(), warning); n != 1 {
		t.Errorf("%d warnings at once", n)
	}
}

// The warning does not wait until all that fills the memory was tried, which takes a PublishTimeout for each few batches.
func TestRelay_WarnsOfAFullMemoryWhileATopicHangs(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]int{"calls of its own": 4, "one call": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, func(c *settings) {
				c.BatchSize, c.MaxPending, c.MaxInFlight, c.PublishTimeout = 10, 1000, calls, time.Second
				c.StopTimeout = 100 * time.Millisecond
			})
			g.broker.set(func(ctx context.Context, _ []producer.Message) error {
				<-ctx.Done()
				return ctx.Err()
			})
			g.write(numbered(2000)...)
			g.start()
			until(t, "a warning", func() bool { return strings.Contains(g.log.String(), "nothing new is published: the memory is full") })
			fresh := map[string]bool{}
			g.broker.mu.Lock()
			defer g.broker.mu.Unlock()
			for _, id := range g.broker.tried {
				fresh[id] = true
			}
			if len(fresh) > 500 {
				t.Errorf("%d messages were tried before there was a word of it", len(fresh))
			}
		})
	}
}
