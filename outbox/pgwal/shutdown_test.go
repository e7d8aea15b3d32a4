package pgwal_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// The server stops when the relay has confirmed all of the log, or has gone. Messages that wait for the broker must not
// hold it up.
func TestRelay_LetsTheServerStop(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t)
	p := s.Process()
	g := newRigOn(t, s, func(c *settings) {
		c.Backoff.Min, c.Backoff.Max, c.StopTimeout = time.Hour, time.Hour, time.Hour
	})
	g.broker.set(refuse("order"))
	g.write(message("order"))
	lock, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), `LOCK TABLE oncemill_outbox IN SHARE MODE`); err != nil { // nothing can be recorded
		t.Fatal(err)
	}
	g.start()
	until(t, "an attempt, and its record to wait", func() bool {
		return g.broker.attempts("order") > 0 && value[bool](g, `SELECT EXISTS (
			SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%WITH given AS%')`)
	})
	if err := syscall.Kill(p.Pid(), syscall.SIGINT); err != nil { // a fast shutdown
		t.Fatal(err)
	}
	until(t, "the end of the server", func() bool {
		select {
		case <-p.Ended():
			return true
		default:
			return false
		}
	})
	g.broker.set(nil)
	s.Restart()
	until(t, "the message", func() bool { return len(g.broker.got()) == 1 })
}

// While memory is full and no attempt has an answer, the relay asks nothing of the table.
func TestRelay_LetsTheServerStopWhileMemoryIsFull(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t)
	p := s.Process()
	g := newRigOn(t, s, func(c *settings) {
		c.Backoff.Min, c.Backoff.Max, c.StopTimeout, c.MaxPending = time.Hour, time.Hour, time.Hour, 1
	})
	g.broker.set(func(context.Context, []producer.Message) error { return errors.New("no answer") })
	g.write(numbered(3)...)
	g.start()
	until(t, "an attempt", func() bool { return g.broker.attempts("order-00000") > 0 })
	lasts(500 * time.Millisecond)                                 // so that a sweep has seen what waits
	if err := syscall.Kill(p.Pid(), syscall.SIGINT); err != nil { // a fast shutdown
		t.Fatal(err)
	}
	select {
	case <-p.Ended():
	case <-time.After(30 * time.Second):
		t.Error("the server waits for the relay")
	}
	g.broker.set(nil)
	s.Restart()
	until(t, "the messages", func() bool { return len(g.broker.got()) == 3 })
}
