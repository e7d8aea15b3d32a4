package pgwal_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill/producer"
)

func TestRelay_ReconnectsInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	n := full(2800, 50_000)
	g := newRig(t, func(c *settings) { c.BatchSize, c.MaxPending, c.MaxInFlight = 50, 100, 1 })
	g.broker.set(func(context.Context, []producer.Message) error {
		lasts(2 * time.Millisecond)
		return nil
	})
	messages := numbered(n)
	for i := range messages {
		messages[i].Payload = make([]byte, 8<<10) // reading them takes the relay a while
	}
	g.write(messages...)
	g.start()
	for part := range 3 {
		until(t, "a part", func() bool { return len(g.broker.got()) > n*(part+1)/8 }) // far from the end of what is read ahead
		g.kill()
	}
	g.awaitConfirmed()
	if got := len(g.broker.copies()); got != n {
		t.Errorf("published %d of %d", got, n)
	}
	if extra := len(g.broker.got()) - n; extra != 0 {
		t.Errorf("%d copies without a cause", extra)
	}
}
