package stocknats_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/stocknats"
)

func TestStock_HandlersLongerThanTheAckDeadlineAreNotDeliveredAgain(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"patient adapter": 0, "impatient adapter": 400 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, adapter string) {
				r := newRig(t, setup{
					adapter: adapter, ackWait: 2 * time.Second, patience: patience,
					handle: func(msg *message.Message, _ int) error {
						select {
						case <-time.After(3500 * time.Millisecond):
						case <-msg.Context().Done():
						}
						return msg.Context().Err()
					},
				})
				r.serve()
				r.publish("o1")
				until(t, "the run", func() bool { return r.ran("o1") > 0 })
				r.settled()
				if n := len(r.times("o1")); n != 1 {
					t.Errorf("delivered %d times, want once", n)
				}
				if info := r.info(); info.Delivered.Consumer != 1 || info.AckFloor.Stream != 1 {
					t.Errorf("%d deliveries, ack floor %d; want 1 and 1", info.Delivered.Consumer, info.AckFloor.Stream)
				}
			})
		})
	}
}

func TestStock_RetryOfAHandlerThatTheAdapterGaveUpHasItsDelay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, patience: 100 * time.Millisecond, handle: func(_ *message.Message, n int) error {
			if n > 1 {
				return nil
			}
			<-time.After(300 * time.Millisecond)
			return oncemill.RetryAfter(500*time.Millisecond, errDeclined)
		}})
		r.serve()
		r.publish("o1")
		until(t, "the second run", func() bool { return r.ran("o1") == 2 })
		r.settled()
		wantDelay(t, r.times("o1"), 800*time.Millisecond)
	})
}

func TestStock_MessagesThatWaitForTheirTurnAreDeliveredOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		s := setup{adapter: adapter, ackWait: 2 * time.Second, handle: func(*message.Message, int) error {
			<-time.After(80 * time.Millisecond)
			return nil
		}}
		if adapter == "nats" {
			s.maxPending = 2
		}
		r := newRig(t, s)
		names := numbered(30)
		r.publish(names...)
		r.serve()
		r.settled()
		r.wantRunsOnce(names)
		if n := r.deliveries(); n != len(names) {
			t.Errorf("%d deliveries of %d messages", n, len(names))
		}
	})
}

// A downStore answers when it is up.
type downStore struct {
	dedupstore.Store
	down atomic.Bool
}

var errDown = errors.New("store is down")

func (s *downStore) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if s.down.Load() {
		return dedupstore.Answer{}, errDown
	}
	return s.Store.Claim(ctx, r)
}

func TestStock_OutageOfTheStoreUsesUpNoDeliveries(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		store := &downStore{Store: memory}
		store.down.Store(true)
		r := newRig(t, setup{
			adapter: adapter, ackWait: 2 * time.Second, maxPending: 1, store: store,
			consumer: consumer.Config{Policy: oncemill.Policy{Backoff: oncemill.Backoff{Min: 50 * time.Millisecond}}},
		})
		r.serve()
		r.publish("o1", "o2", "o3")
		began := time.Now()
		until(t, "tries for longer than the ack wait", func() bool { return r.deliveries() > 5 && time.Since(began) > 2500*time.Millisecond })
		if info := r.info(); info.NumRedelivered != 0 || info.NumAckPending != 1 {
			t.Errorf("%d redelivered, %d pending; want none redelivered", info.NumRedelivered, info.NumAckPending)
		}
		store.down.Store(false)
		r.settled()
		r.wantRunsOnce([]string{"o1", "o2", "o3"})
	})
}

// A lossyStore says once that the claim is lost.
type lossyStore struct {
	dedupstore.Store
	lost atomic.Bool
}

func (s *lossyStore) Settle(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	err := s.Store.Settle(ctx, c, settlement)
	if s.lost.CompareAndSwap(false, true) {
		return dedupstore.ErrClaimLost
	}
	return err
}

func TestStock_LostClaimComesBackAfterALease(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, setup{adapter: adapter, store: &lossyStore{Store: memory}, config: stocknats.Config{Lease: time.Second}})
		r.serve()
		r.publish("o1")
		until(t, "the run", func() bool { return r.ran("o1") == 1 })
		r.settled()
		wantDelay(t, r.times("o1"), time.Second)
		r.wantRunsOnce([]string{"o1"})
	})
}
