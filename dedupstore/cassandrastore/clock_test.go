package cassandrastore

import (
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
	if !o.fresh(came) || !o.fresh(came.Add(compareAfter-1)) || o.fresh(came.Add(compareAfter)) {
		t.Error("a comparison is not fresh for a second")
	}
	var none *offset
	if none.fresh(came) {
		t.Error("what was never compared is fresh")
	}
	// Somebody set the wall clock: its times have no monotonic part.
	for _, set := range []time.Duration{-time.Minute, time.Minute} {
		if o.fresh(came.Round(0).Add(set)) {
			t.Errorf("a comparison is fresh after the clock was set by %v", set)
		}
	}
}

func TestStore_ClaimsNothingByAClockThatIsOff(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for want, by := range map[string]time.Duration{"ahead of": -10 * time.Second, "behind": 10 * time.Second} {
		off := func() { s.clock.last.Store(&offset{by, by, time.Now()}) }
		ended := request(want + " held")
		ended.Lease = time.Millisecond // it has ended by this host's clock
		running := claim(t, s, ended, dedupstore.AcquiredRun).Claim
		<-time.After(ended.Lease + s.slack + time.Millisecond)
		settle(t, s, claim(t, s, request(want+" done"), dedupstore.AcquiredRun).Claim, succeeded("paid"))
		off()
		var setup *dedupstore.SetupError
		if _, err := dedupstore.ClaimOne(t.Context(), s, request(want)); !errors.As(err, &setup) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want that the clock is %s the node's", err, want)
		}
		for tries, late := 50, true; late; tries-- { // Check does other things before
			off()
			start := time.Now()
			_, err := s.Check(t.Context())
			late = err == nil && tries > 0 && time.Since(start) >= compareAfter
			if !late && (!errors.As(err, &setup) || !strings.Contains(err.Error(), want)) {
				t.Errorf("Check says %v", err)
			}
		}
		off()
		seen := dedupstore.Record{Key: ended.Key, State: dedupstore.Running, Fence: running.Fence}
		if err := s.Change(t.Context(), seen, dedupstore.Forget{}); !errors.As(err, &setup) {
			t.Errorf("a record was forgotten: %v", err)
		}
		off()
		settle(t, s, running, succeeded("")) // what is held can be settled
		off()
		claim(t, s, request(want+" done"), dedupstore.Done) // and outcomes can be told

		s.clock.last.Store(nil) // the next claim looks again
		if a := claim(t, s, request(want), dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
			t.Errorf("attempt %d was counted", a.Claim.Attempt)
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
