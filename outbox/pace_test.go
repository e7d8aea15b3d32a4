package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_LooksLessOftenWhileIdle(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore), &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{PollInterval: 2 * time.Second}))
		after(t, time.Minute)
		if n := s.lookCount(); n < 30 || n > 40 {
			t.Errorf("%d looks in an idle minute, want one every 2 s and some at the beginning", n)
		}
		s.write("a") // without Wake: the poll finds it
		after(t, 3*time.Second)
		if b.callCount() != 1 {
			t.Fatal("row was not found by polling")
		}
		stop()
		found := slices.IndexFunc(s.looks, func(at time.Time) bool { return at.Equal(b.calls[0].at) })
		if gap := s.looks[found+1].Sub(s.looks[found]); gap > 10*time.Millisecond {
			t.Errorf("the look after work came %v later, want a short pause again", gap)
		}
	})
}

func TestRelay_WakeEndsThePause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore), &broker{}
		r := newRelay(t, s, b, outbox.Config{PollInterval: time.Hour})
		stop := start(t, r)
		after(t, 24*time.Hour)
		for i := range 5 {
			begin := time.Now()
			s.write(fmt.Sprint(i))
			r.Wake()
			r.Wake()
			after(t, time.Millisecond)
			if at := b.times(fmt.Sprint(i), begin); len(at) != 1 || at[0] != 0 {
				t.Errorf("row %d was published at %v after Wake, want at once", i, at)
			}
			after(t, 3*time.Hour)
		}
		stop()
	})
}

// A look costs the database more than a row, and writers that wake the relay after each commit would pay for it. A
// single row does not wait (TestRelay_WakeEndsThePause).
func TestRelay_ManyWakesAreOneLook(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore), &broker{}
		s.onLease = func(apply func() []outbox.Row) ([]outbox.Row, error) {
			<-time.After(time.Millisecond)
			return apply(), nil
		}
		r := newRelay(t, s, b, outbox.Config{})
		stop := start(t, r)
		after(t, time.Minute)
		before, begin := s.lookCount(), time.Now()
		for i := range 10_000 { // in a second
			s.write(fmt.Sprint(i))
			r.Wake()
			after(t, 100*time.Microsecond)
		}
		looks := s.lookCount() - before
		after(t, 20*time.Millisecond)
		stop()
		if looks > 250 {
			t.Errorf("%d looks in a second, want one every 6 ms when rows come so fast", looks)
		}
		for i := range 10_000 {
			written := time.Duration(i) * 100 * time.Microsecond
			if at := b.times(fmt.Sprint(i), begin); len(at) != 1 || at[0]-written > 8*time.Millisecond {
				t.Fatalf("row %d, written at %v, was published at %v, want it within 8 ms", i, written, at)
			}
		}
	})
}

// wakingStore has a signal of its own.
type wakingStore struct {
	*fakeStore
	woken chan struct{}
}

func (s wakingStore) Woken() <-chan struct{} { return s.woken }

func TestRelay_ListensToTheStoresSignal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := wakingStore{new(fakeStore), make(chan struct{}, 1)}, &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{PollInterval: time.Hour}))
		after(t, 24*time.Hour)
		s.write("a")
		s.woken <- struct{}{}
		after(t, time.Millisecond)
		if b.callCount() != 1 {
			t.Error("row was not published after the store's signal")
		}
		stop()
	})
}

func TestRelay_WakesMakeNoStormWhileTheBrokerIsAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		b := &broker{answer: func(context.Context, []producer.Message) error { return errors.New("no route to host") }}
		r := newRelay(t, s, b, outbox.Config{BatchSize: 10})
		stop := start(t, r)
		for i := range 20_000 {
			if i%10 == 0 {
				s.write(fmt.Sprint(i))
			}
			r.Wake()
			after(t, time.Millisecond)
		}
		looks := s.lookCount()
		b.heal()
		after(t, 2*time.Minute)
		stop()
		if looks > 35 {
			t.Errorf("%d looks in 20 s without a broker, want about one a second", looks)
		}
		if n := len(b.attempts()); n != 2000 {
			t.Errorf("%d rows were published, want 2000", n)
		}
		for _, row := range s.rows {
			if row.state != "published" {
				t.Fatalf("row %s is %s two minutes after the broker came back", row.Message.ID, row.state)
			}
		}
	})
}

func TestRelay_PublishedRowsStayForTheRetention(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		for i := range 2500 {
			s.write(fmt.Sprint(i))
		}
		stop := start(t, newRelay(t, s, &broker{}, outbox.Config{Retention: 10 * time.Minute}))
		after(t, 9*time.Minute)
		if n := s.rowCount(); n != 2500 {
			t.Errorf("%d of 2500 rows are left before their retention ended", n)
		}
		after(t, 3*time.Minute)
		stop()
		if len(s.rows) != 0 {
			t.Errorf("%d rows are left after their retention ended", len(s.rows))
		}
		for _, limit := range s.cleans {
			if limit < 1 || limit > 1000 {
				t.Errorf("Clean was asked for %d rows at once", limit)
			}
		}
	})
}

// slowCleaner is a store that always has more to clean.
type slowCleaner struct {
	*fakeStore
	took time.Duration
}

func (s slowCleaner) Clean(_ context.Context, _ time.Duration, limit int) (int, error) {
	<-time.After(s.took)
	return limit, nil
}

func TestRelay_SlowCleaningHoldsUpPublishingForTwoTimeoutsAtMost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := slowCleaner{new(fakeStore), 900 * time.Millisecond}, &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 10_000, PublishTimeout: time.Second}))
		after(t, time.Millisecond) // it cleans
		s.write("a")
		after(t, 2*time.Second)
		if n := b.callCount(); n != 1 {
			t.Errorf("%d batches were published meanwhile, want 1", n)
		}
		stop()
	})
}

func TestRelay_DeleteAtOnceKeepsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "old")
		s.rows[1].state = "published" // kept under another config
		stop := start(t, newRelay(t, s, &broker{}, outbox.Config{Retention: outbox.DeleteAtOnce}))
		after(t, time.Second)
		stop()
		if r := s.row(t, "a"); r.state != "removed" || len(s.rows) != 1 {
			t.Errorf("row is %s, and there are %d rows; want it removed, and the old one gone", r.state, len(s.rows))
		}
	})
}
