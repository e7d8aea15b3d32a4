package cassandrastore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

func TestClock_JudgesByTheWayOfTheAnswer(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		sent, came time.Duration // by this host's clock, after what the node's clock showed
		within     bool
	}{
		"together":                    {0, ms, true},
		"behind by the bound":         {-510 * ms, -500 * ms, true},
		"behind by more":              {-510 * ms, -501 * ms, false},
		"ahead by the bound":          {501 * ms, 510 * ms, true},
		"ahead by more":               {502 * ms, 510 * ms, false},
		"a long way is no proof":      {-5 * time.Second, 5 * time.Second, true},
		"far behind after a long way": {-time.Minute, -5 * time.Second, false},
		"far ahead after a long way":  {5 * time.Second, time.Minute, false},
	} {
		if got := compare(at, at.Add(c.sent), at.Add(c.came)).within(500 * ms); got != c.within {
			t.Errorf("%s: within is %v", name, got)
		}
	}
}

func TestClock_AComparisonCountsForASecond(t *testing.T) {
	t.Parallel()
	came := time.Now()
	o := compare(came, came, came)
	if !o.fresh(came, compareAfter) || !o.fresh(came.Add(compareAfter-1), compareAfter) ||
		o.fresh(came.Add(compareAfter), compareAfter) {
		t.Error("a comparison is not fresh for a second")
	}
	var none *offset
	if none.fresh(came, compareAfter) {
		t.Error("what was never compared is fresh")
	}
	// Somebody set the wall clock: its times have no monotonic part.
	for _, set := range []time.Duration{-time.Minute, time.Minute} {
		if o.fresh(came.Round(0).Add(set), compareAfter) {
			t.Errorf("a comparison is fresh after the clock was set by %v", set)
		}
	}
}

func TestStore_ClaimsNothingByAClockThatIsOff(t *testing.T) {
	t.Parallel()
	s, clock := clocked(t, newStore(t))
	for want, by := range map[string]time.Duration{"ahead of": -10 * time.Second, "behind": 10 * time.Second} {
		ended := request(want + " held")
		ended.Lease = time.Millisecond // it has ended by this host's clock
		running := claim(t, s, ended, dedupstore.AcquiredRun).Claim
		clock.Advance(ended.Lease + s.slack + time.Millisecond)
		settle(t, s, claim(t, s, request(want+" done"), dedupstore.AcquiredRun).Claim, succeeded("paid"))
		s.clock.last.Store(&offset{by, by, time.Now()})
		var setup *dedupstore.SetupError
		if _, err := dedupstore.ClaimOne(t.Context(), s, request(want)); !errors.As(err, &setup) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want that the clock is %s the node's", err, want)
		}
		if _, err := s.Check(t.Context()); !errors.As(err, &setup) || !strings.Contains(err.Error(), want) {
			t.Errorf("Check says %v", err)
		}
		seen := dedupstore.Record{Key: ended.Key, State: dedupstore.Running, Fence: running.Fence}
		if err := s.Change(t.Context(), seen, dedupstore.Forget{}); !errors.As(err, &setup) {
			t.Errorf("a record was forgotten: %v", err)
		}
		settle(t, s, running, succeeded(""))                // what is held can be settled
		claim(t, s, request(want+" done"), dedupstore.Done) // and outcomes can be told

		s.clock.last.Store(nil) // the next claim looks again
		if a := claim(t, s, request(want), dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
			t.Errorf("attempt %d was counted", a.Claim.Attempt)
		}
	}
}

// A node that hangs holds up one comparison, and the claim that waits for it.
func TestClock_OthersDoNotWaitForAComparison(t *testing.T) {
	t.Parallel()
	s := &Store{clock: clock{bound: time.Second, lasts: time.Minute, asking: make(chan struct{}, 1)}}
	s.clock.asking <- struct{}{} // somebody asks
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.inTime(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without any comparison: %v", err)
	}
	for age, wants := range map[time.Duration]error{
		2 * time.Minute: nil, 2 * spare * time.Minute: context.DeadlineExceeded,
	} {
		s.clock.last.Store(&offset{came: time.Now().Add(-age)})
		if err := s.inTime(ctx); !errors.Is(err, wants) {
			t.Errorf("%v after a comparison: %v", age, err)
		}
	}
}

func TestStore_LeasesLiveLongerByTwiceMaxSkew(t *testing.T) {
	t.Parallel()
	c := Config{Keyspace: keyspace(t), Table: tableName(), MaxSkew: time.Second}
	s, err := New(cassandratest.Shared(t).Session(t), c)
	if err == nil {
		err = s.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	claimtest.LongerLease(t, s, 2*time.Second)
}
