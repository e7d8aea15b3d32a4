package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_StoreErrorsDoNotEndIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var down atomic.Bool
		s, b := new(fakeStore).write("a"), &broker{}
		s.onLease = func(apply func() []outbox.Row) ([]outbox.Row, error) {
			if down.Load() {
				return nil, errDown
			}
			return apply(), nil
		}
		down.Store(true)
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 10*time.Minute)
		if n := s.lookCount(); n > 90 {
			t.Errorf("%d looks at a store that is down for 10 min, want about one in 10 s", n)
		}
		down.Store(false)
		after(t, 11*time.Second)
		stop()
		if b.attempts()["a"] != 1 {
			t.Errorf("row was published %d times after the store came back, want once", b.attempts()["a"])
		}
	})
}

// An answer of the store that does not come holds up its own batch.
func TestRelay_SilentStoreHoldsUpNoOtherRows(t *testing.T) {
	for _, operation := range []string{"lease", "settle", "clean"} {
		t.Run(operation, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				s, b := new(silentStore), &broker{}
				stop := start(t, newRelay(t, s, b, outbox.Config{}))
				defer stop()
				s.fakeStore.write("first")
				after(t, 2*time.Second)
				s.silent.Store(&operation)
				s.fakeStore.write("hung")
				waits := time.Now()
				for s.silent.Load() != nil { // until it has met somebody
					after(t, 10*time.Millisecond)
					if time.Since(waits) > 2*time.Minute {
						t.Fatal("nobody calls it")
					}
				}
				began := time.Now()
				for n := range 4 { // the answer is given up after 10 s
					id := fmt.Sprint(n)
					s.fakeStore.write(id)
					after(t, 2100*time.Millisecond)
					if at := b.times(id, began); len(at) != 1 {
						t.Errorf("%s was published at %v, want once within 2.1 s", id, at)
					}
				}
			})
		})
	}
}

// A silentStore answers one operation never, which then ends with its context.
type silentStore struct {
	fakeStore
	silent atomic.Pointer[string]
}

func (s *silentStore) answer(ctx context.Context, operation string) error {
	if silent := s.silent.Load(); silent == nil || *silent != operation || !s.silent.CompareAndSwap(silent, nil) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *silentStore) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	if !r.Suspects {
		if err := s.answer(ctx, "lease"); err != nil {
			return nil, err
		}
	}
	return s.fakeStore.Lease(ctx, r)
}

func (s *silentStore) Settle(ctx context.Context, token string, results []outbox.Result) error {
	if err := s.answer(ctx, "settle"); err != nil {
		return err
	}
	return s.fakeStore.Settle(ctx, token, results)
}

func (s *silentStore) Clean(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := s.answer(ctx, "clean"); err != nil {
		return 0, err
	}
	return s.fakeStore.Clean(ctx, age, limit)
}

// Six loops meet the same fault, each for as long as it lasts.
func TestRelay_StoreThatStaysDownIsSaidOnceAMinute(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		errOther, began := errors.New("no such table"), time.Now()
		s := new(fakeStore)
		s.onLease = func(func() []outbox.Row) ([]outbox.Row, error) {
			if time.Since(began) > 10*time.Minute {
				return nil, errOther
			}
			return nil, errDown
		}
		stop := start(t, newRelay(t, s, &broker{}, outbox.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		after(t, 10*time.Minute+15*time.Second)
		stop()
		if n := strings.Count(log.String(), errDown.Error()); n < 8 || n > 10 {
			t.Errorf("%d lines about a store that is down for 10 min, want about one a minute", n)
		}
		if n := strings.Count(log.String(), errOther.Error()); n != 1 {
			t.Errorf("%d lines about another fault, want one at once", n)
		}
	})
}

// A publisher that fails at once fails for each batch, and for each of the suspects.
func TestRelay_WhatIsNotAcknowledgedIsSaidOnceAMinute(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log journal
		s, b := new(fakeStore), &broker{}
		b.answer = func(context.Context, []producer.Message) error { return errDown }
		for i := range 600 {
			s.write(fmt.Sprint(i))
		}
		stop := start(t, newRelay(t, s, b, outbox.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		after(t, 3*time.Minute)
		stop()
		lines := regexp.MustCompile(`not acknowledged" messages=(\d+) of=(\d+)`).FindAllStringSubmatch(log.String(), -1)
		for _, line := range lines {
			if line[1] != line[2] {
				t.Errorf("%q, want all of them", line[0])
			}
		}
		if len(lines) < 2 || len(lines) > 4 {
			t.Errorf("%d lines in 3 min, want about one a minute", len(lines))
		}
	})
}

func TestRelay_LostReplyToALeaseGivesTheRowsBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var lost atomic.Bool
		s, b := new(fakeStore).write("a"), &broker{}
		s.onLease = func(apply func() []outbox.Row) ([]outbox.Row, error) {
			rows := apply()
			if len(rows) > 0 && lost.CompareAndSwap(false, true) {
				return nil, errors.New("connection lost")
			}
			return rows, nil
		}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 2*time.Second) // much less than the lease
		stop()
		if r := s.row(t, "a"); r.state != "published" || r.Unknowns != 0 || b.attempts()["a"] != 1 {
			t.Errorf("row is %s with %d unknowns after %d attempts, want published at the first", r.state, r.Unknowns, b.attempts()["a"])
		}
	})
}

func TestRelay_SettleIsRepeatedUntilTheLeaseEnds(t *testing.T) {
	for name, lost := range map[string]bool{"not applied": false, "reply lost": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				s, b := new(fakeStore).write("a", "b"), &broker{}
				healthy := time.Now().Add(20 * time.Second)
				s.onSettle = func(apply func()) error {
					if time.Now().After(healthy) {
						apply()
						return nil
					}
					if lost {
						apply()
					}
					return errDown
				}
				stop := start(t, newRelay(t, s, b, outbox.Config{Lease: time.Minute}))
				after(t, 10*time.Minute)
				stop()
				for _, id := range []string{"a", "b"} {
					if r := s.row(t, id); r.state != "published" || b.attempts()[id] != 1 {
						t.Errorf("row %s is %s after %d attempts, want published by one", id, r.state, b.attempts()[id])
					}
				}
			})
		})
	}
}

func TestRelay_DiedBetweenPublishAndMark_AnotherSendsTheSameIDAfterTheLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a")
		b := &broker{}
		begin := time.Now()
		cut := &cutOff{fakeStore: s}
		stopDying := start(t, newRelay(t, cut, b, outbox.Config{}))
		after(t, time.Second)
		if b.attempts()["a"] != 1 {
			t.Fatal("the first relay did not publish")
		}
		stopDying()
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 2*time.Minute)
		stop()
		at := b.times("a", begin)
		if len(at) != 2 || at[1] < time.Minute || at[1] > time.Minute+2*time.Second {
			t.Errorf("row was published at %v, want a second time when the lease of 1 min ended", at)
		}
		if r := s.row(t, "a"); r.state != "published" || r.Unknowns != 1 {
			t.Errorf("row is %s with %d unknowns, want published, and the first attempt counted", r.state, r.Unknowns)
		}
	})
}

// cutOff is a store that its relay cannot write to any more once it has leased.
type cutOff struct{ *fakeStore }

func (cutOff) Settle(context.Context, string, []outbox.Result) error { return errDown }

func TestRelay_StopWaitsForWhatIsBeingPublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "refused")
		b := &broker{answer: func(ctx context.Context, m []producer.Message) error {
			<-time.After(3 * time.Second)
			if ctx.Err() != nil {
				t.Error("publish was cancelled within PublishTimeout")
			}
			return refuse(false, "refused")(ctx, m)
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{PublishTimeout: 5 * time.Second}))
		after(t, time.Second)
		begin := time.Now()
		stop()
		if d := time.Since(begin); d != 2*time.Second {
			t.Errorf("stop took %v, want the 2 s that were left", d)
		}
		if r := s.row(t, "a"); r.state != "published" || r.token != "" {
			t.Errorf("acknowledged row is %s, leased by %q", r.state, r.token)
		}
		if r := s.row(t, "refused"); r.Failures != 1 || r.token != "" {
			t.Errorf("refused row has %d failures, leased by %q", r.Failures, r.token)
		}
	})
}

func TestRelay_StopMarksWhatWasAcknowledgedAndGivesBackTheRest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "b")
		b := &broker{answer: func(ctx context.Context, _ []producer.Message) error {
			<-ctx.Done() // the acknowledgement of b never comes
			return &producer.PublishError{Failures: []producer.Failure{{Index: 1, ID: "b", Err: ctx.Err(), Unknown: true}}}
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, time.Second)
		begin := time.Now()
		stop()
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("stop took %v, want 10 s", d)
		}
		if r := s.row(t, "a"); r.state != "published" {
			t.Errorf("acknowledged row is %s", r.state)
		}
		if r := s.row(t, "b"); r.state != "pending" || r.token != "" || r.Unknowns != 0 || r.due.After(time.Now()) {
			t.Errorf("row b is %s, leased by %q, %d unknowns, due in %v; want it given back", r.state, r.token, r.Unknowns, time.Until(r.due))
		}
	})
}

func TestRelay_StopWithABrokenStoreIsBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a")
		s.onSettle = func(func()) error { return errDown }
		stop := start(t, newRelay(t, s, &broker{}, outbox.Config{PublishTimeout: 2 * time.Second}))
		after(t, time.Second)
		begin := time.Now()
		stop()
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("stop took %v, want at most PublishTimeout", d)
		}
	})
}

// slowLease is a store that commits a lease some time after it was asked for one, whatever becomes of the caller.
type slowLease struct {
	*fakeStore
	asked chan struct{}
}

func (s slowLease) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	if r.Suspects {
		return s.fakeStore.Lease(ctx, r)
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
	committed := make(chan []outbox.Row, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		rows, _ := s.fakeStore.Lease(context.WithoutCancel(ctx), r)
		committed <- rows
	})
	select {
	case rows := <-committed:
		return rows, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestRelay_StopLeavesNoLeaseThatIsUnderWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := slowLease{new(fakeStore).write("1"), make(chan struct{}, 1)}
		stop := start(t, newRelay(t, s, &broker{}, outbox.Config{}))
		<-s.asked
		stop()
		<-time.After(time.Second)
		if row := s.row(t, "1"); row.token != "" {
			t.Error("the row is leased after the stop")
		}
	})
}

func TestRelay_RowsThatTakeTooLongToReadTogetherAreReadInParts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := slowRead{new(fakeStore).write("a", "b", "c", "d", "e", "f", "g")}, &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 5*time.Minute)
		stop()
		for id, n := range b.attempts() {
			if n != 1 {
				t.Errorf("%s was published %d times, want once", id, n)
			}
		}
		if n := len(b.attempts()); n != 7 {
			t.Errorf("%d rows were published, want 7", n)
		}
	})
}

// slowRead takes 4 s for each row that it hands out.
type slowRead struct{ *fakeStore }

func (s slowRead) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	rows, _ := s.fakeStore.Lease(ctx, r)
	select {
	case <-time.After(time.Duration(len(rows)) * 4 * time.Second):
		return rows, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
