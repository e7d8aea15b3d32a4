package faults_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A message that ends its process ends as a dead letter. Those that ran beside it lose two attempts at most, and are
// handled: from then on the message that kills runs while none of them does.
func TestJetStream_NeighboursOfAMessageThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	for name, j := range map[string]task{
		"worker":       {Work: full(time.Second, 100*time.Millisecond)},
		"batch worker": {Work: full(50*time.Millisecond, time.Millisecond), Batch: 64},
		"Router":       {Work: full(time.Second, 100*time.Millisecond), Router: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			neighbours(t, j)
		})
	}
}

func neighbours(t *testing.T, j task) {
	const lease, orders, attempts = 2 * time.Second, 60, 4
	server := natstest.Start(t)
	j.Handler, j.Lease, j.MaxWait, j.Grace, j.Window = "deadly", lease, lease/5, shutdownGrace, 64
	s := newShop(t, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{}, lease, j)
	s.publishOrders(orders)
	for range attempts {
		w := s.start()
		<-w.Ended()
	}
	last := s.start()
	s.drain()
	s.terminate(last)
	s.refresh()
	for i := range orders {
		id := orderID(i)
		runs, attempt := 0, 0
		for _, e := range s.Message(id).Runs {
			attempt = max(attempt, e.Attempt)
			if e.Did() {
				runs++
			}
		}
		switch {
		case i == deadlyOrder && (runs != attempts || s.deadLetters()[id] != 1):
			t.Errorf("the message that kills ran %d times, and has %d dead letters, want %d and one", runs,
				s.deadLetters()[id], attempts)
		case i != deadlyOrder && (runs == 0 || attempt > 3 || s.deadLetters()[id] > 0 || !s.finished(id)):
			t.Errorf("%s ran %d times, up to attempt %d, and has %d dead letters; want it handled, with two attempts "+
				"lost at most", id, runs, attempt, s.deadLetters()[id])
		}
	}
	s.mustHaveGivenUpNothing()
}
