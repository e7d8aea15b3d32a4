package faults_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A message that ends its process spends its own attempts, and ends as a dead letter. Those that were in its batch have
// lost two attempts at most, and keep the others: they run one at a time then.
func TestJetStream_MessageThatKillsItsProcessInABatch(t *testing.T) {
	t.Parallel()
	const lease, orders, attempts = 2 * time.Second, 200, 4
	server := natstest.Start(t)
	s := newShop(t, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{}, lease, task{
		Handler: "deadly", Work: time.Millisecond, Lease: lease, MaxWait: lease / 5, Grace: shutdownGrace, Window: 128,
		Batch: 64,
	})
	s.publishOrders(orders)
	for range attempts {
		began := time.Now()
		w := s.start()
		<-w.Ended()
		s.Happened(ledger.Event{Why: ledger.HolderKilled, Holder: w.Pid(), From: began, To: time.Now()})
	}
	last := s.start()
	s.drain()
	s.terminate(last)
	s.books(orders, orders).MustExplain(t, ledger.HolderKilled)
	runs, most := map[string]int{}, 0
	for r := range s.Runs {
		if r.Did() {
			runs[r.ID]++
		}
	}
	for id, n := range runs {
		if id != orderID(deadlyOrder) {
			most = max(most, n)
		}
	}
	if n := runs[orderID(deadlyOrder)]; n != attempts || most >= attempts {
		t.Errorf("the message that kills ran %d times, its neighbours up to %d; want %d, and fewer", n, most, attempts)
	}
	if deadLetters := s.deadLetters(); len(deadLetters) != 1 || deadLetters[orderID(deadlyOrder)] != 1 {
		t.Errorf("dead letters %v, want one of %s", deadLetters, orderID(deadlyOrder))
	}
}
