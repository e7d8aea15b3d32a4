package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

const shutdownGrace = 15 * time.Second // much longer than handlers take, on a machine that is busy, too

// newClosing is a shop with 300 orders, and workers with a hundred in flight, each for a second. The stream forgets what
// is acknowledged.
func newClosing(t *testing.T, j task) *shop {
	t.Helper()
	server := natstest.Start(t)
	j.Lease, j.MaxWait, j.Window = 2*time.Second, time.Second, 100
	s := newShop(t, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, 2*time.Second, j)
	s.publishOrders(300)
	return s
}

func (s *shop) publishOrders(n int) {
	var messages []producer.Message
	for i := range n {
		messages = append(messages, order(i, false))
	}
	s.publish(s.t.Context(), messages...)
	s.messages.Store(int64(n))
}

// inFlight waits until n handlers are at work at once.
func (s *shop) inFlight(n int) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("%d handlers at work", n), func() bool {
		return s.count(func(e ledger.Run) bool { return e.Delivered > 0 && !e.Did() }) >= n
	})
}

// checkAcks checks that everything that began has ended, and that the server has an ack of all that ended.
func (s *shop) checkAcks(started int) {
	s.t.Helper()
	if n := s.count(func(e ledger.Run) bool { return e.Did() && e.End == ledger.Recorded }); n < started {
		s.t.Errorf("%d runs have an effect and an outcome, want at least the %d in flight", n, started)
	}
	if n := s.count(func(e ledger.Run) bool { return e.End == "" }); n > 0 {
		s.t.Errorf("%d runs did not come to an end", n)
	}
	kept := s.settled()
	for r := range s.Runs {
		if r.End == ledger.Recorded && kept[r.ID] {
			s.t.Errorf("%s has an outcome, and no ack of it is on the server", r.ID)
		}
	}
	if all := s.done(); len(kept)+all != int(s.messages.Load()) {
		s.t.Errorf("the stream holds %d messages beside %d that are done, want %d together", len(kept), all, s.messages.Load())
	}
	info, err := s.info()
	if err != nil {
		s.t.Fatal(err)
	}
	if info.NumAckPending > len(kept) {
		s.t.Errorf("%d messages are not acknowledged, of %d that are left", info.NumAckPending, len(kept))
	}
	s.t.Logf("%d messages done and acknowledged, %d left, of which %d were delivered and given back", s.done(), len(kept), info.NumAckPending)
}

// settled is kept when the server has worked on the acks that have reached it, which takes it a moment.
func (s *shop) settled() map[string]bool {
	s.t.Helper()
	for end := time.Now().Add(5 * time.Second); ; lasts(10 * time.Millisecond) {
		kept := s.kept()
		if len(kept)+s.done() == int(s.messages.Load()) || time.Now().After(end) {
			return kept
		}
	}
}

// kept are the messages that the stream holds: those that are not acknowledged.
func (s *shop) kept() map[string]bool {
	s.t.Helper()
	kept := map[string]bool{}
	stream := lookAt(s.t, s.js, ordersStream)
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; state.Msgs > 0 && seq <= state.LastSeq; seq++ {
		if msg := messageAt(s.t, stream, seq); msg != nil {
			kept[string(msg.Data)] = true
		}
	}
	return kept
}

// checkOnce checks that each message has had its effect, and that none ran again after it.
func (s *shop) checkOnce() {
	s.t.Helper()
	s.refresh()
	for i := range int(s.messages.Load()) {
		effects := 0
		for _, e := range s.Message(orderID(i)).Runs {
			if effects > 0 {
				s.t.Errorf("%s ran again although it was finished", e.ID)
			}
			if e.Did() {
				effects++
			}
		}
		if effects == 0 {
			s.t.Errorf("%s is lost", orderID(i))
		}
	}
	s.mustHaveGivenUpNothing()
}

// finish lets a worker in this process do what is left, and checks that each message was done once.
func (s *shop) finish() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	j := s.next()
	j.Handler, j.Work = "steady", time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- j.run(ctx, s.t) }()
	s.drain()
	cancel()
	if err := <-ended; err != nil {
		s.t.Error(err)
	}
	s.checkOnce()
}

// The worker's process ends with an error if a goroutine is left.
func TestJetStream_ShutdownBySignal(t *testing.T) {
	t.Parallel()
	s := newClosing(t, task{Handler: "steady", Work: time.Second, Grace: shutdownGrace})
	w := s.start()
	s.inFlight(100)
	took := s.terminate(w)
	t.Logf("the process ended %v after SIGTERM", took)
	if took > shutdownGrace {
		t.Errorf("the process took %v to end, want less than its grace of %v", took, shutdownGrace)
	}
	s.checkAcks(100)
	s.finish()
}

func TestJetStream_ShutdownByContext(t *testing.T) { // not parallel: it looks for goroutines
	s := newClosing(t, task{Handler: "steady", Work: time.Second, Grace: shutdownGrace})
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.next().run(ctx, t) }()
	s.inFlight(100)
	start := time.Now()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > shutdownGrace {
		t.Errorf("the worker took %v to end, want less than its grace of %v", took, shutdownGrace)
	}
	goleak.VerifyNone(t, before)
	s.checkAcks(100)
	s.finish()
}

// Handlers that do not end by themselves are cancelled when the grace is over. Their messages are given back, and run
// again.
func TestJetStream_ShutdownEndsWithinGrace(t *testing.T) {
	t.Parallel()
	const grace = 1500 * time.Millisecond
	s := newClosing(t, task{Handler: "endless", Work: time.Second, Grace: grace})
	w := s.start()
	s.inFlight(100)
	took := s.terminate(w)
	t.Logf("the process ended %v after SIGTERM", took)
	if bound := grace + full(2*time.Second, 30*time.Second); took > bound {
		t.Errorf("the process took %v to end, want its grace and little more: %v", took, bound)
	}
	s.checkAcks(50)
	s.finish()
}
