package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
)

// crash has runs of messages end with their processes.
func crash(t *testing.T, store dedupstore.Store, times int, ids ...string) {
	t.Helper()
	for n := range times {
		for _, id := range ids {
			answer, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
				Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
				Owner: fmt.Sprintf("dead-process-%04d", n), Lease: time.Second, Retention: time.Hour, MaxAttempts: 100,
			})
			if err != nil || answer.Status != dedupstore.AcquiredRun {
				t.Fatalf("%+v, %v, want a run that crashes", answer, err)
			}
		}
		time.Sleep(2 * time.Second) // virtual
	}
}

// The broker's count says nothing: a message may have been delivered again for any reason.
func TestStartBatch_RedeliveredMessagesRunTogether(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, p *consumer.Processor, store dedupstore.Store){
		"after a crash": func(t *testing.T, _ *consumer.Processor, store dedupstore.Store) {
			crash(t, store, 1, "a", "b", "c")
		},
		"after a failure": func(t *testing.T, p *consumer.Processor, _ dedupstore.Store) {
			togethers(t, p, []int{1, 1, 1}, func(_ context.Context, which []int) []error {
				return slices.Repeat([]error{oncemill.RetryAfter(0, errors.New("later"))}, len(which))
			})
		},
		"without a run": func(*testing.T, *consumer.Processor, dedupstore.Store) {},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				p := newProcessor(t, store, consumer.Config{})
				before(t, p, store)
				var batches [][]int
				togethers(t, p, []int{2, 3, 7}, func(_ context.Context, which []int) []error {
					batches = append(batches, which)
					return nil
				})
				if len(batches) != 1 || len(batches[0]) != 3 {
					t.Errorf("batches of %v, want one of three", batches)
				}
			})
		})
	}
}

// A suspect of a batch runs alone, after the others, and never beside another suspect.
func TestStartBatch_SuspectsRunAfterTheOthersOneAtATime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "c", "e")
		p := newProcessor(t, store, consumer.Config{})
		var mu sync.Mutex
		var batches [][]int
		running := 0
		decisions := togethers(t, p, []int{1, 1, 1, 1, 1}, func(_ context.Context, which []int) []error {
			mu.Lock()
			if running++; running > 1 {
				t.Errorf("%v run beside others", which)
			}
			batches = append(batches, which)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		})
		if len(batches) != 4 || !slices.Equal(batches[0], []int{1, 3}) {
			t.Errorf("batches of %v, want first b and d, then the others", batches)
		}
		for i, d := range decisions {
			if d.Action != consumer.Ack {
				t.Errorf("delivery %d: %+v, want an ack", i, d)
			}
		}
	})
}

// A drain sends suspects back that wait for their turn, without a run.
func TestProcess_StoppingSendsAWaitingSuspectBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		crash(t, store, 2, "a", "b")
		p := newProcessor(t, store, consumer.Config{})
		leave, stopping := make(chan struct{}), make(chan struct{})
		decided := make(chan consumer.Decision, 2)
		process := func(id string) {
			p.Start(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders", Stopping: stopping,
				Header: map[string]string{"oncemill-id": id}},
				func(context.Context) error { <-leave; return nil }, func(d consumer.Decision) { decided <- d })
			time.Sleep(time.Minute) // virtual: long after MaxWait
		}
		process("a")
		process("b")
		if len(decided) > 0 {
			t.Errorf("%+v was decided while both wait", <-decided)
		}
		close(stopping)
		if d := <-decided; d.Action != consumer.RetryLater || d.Delay > time.Second {
			t.Errorf("%+v, want a retry at once", d)
		}
		close(leave)
		if d := <-decided; d.Action != consumer.Ack {
			t.Errorf("%+v, want an ack of the one that ran", d)
		}
	})
}
