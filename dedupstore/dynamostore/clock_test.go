package dynamostore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

func TestClock_JudgesByWholeSeconds(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		date       time.Duration // of the reply, after at
		sent, came time.Duration // by this host's clock, after at
		right      bool
	}{
		"together":                        {0, 300 * time.Millisecond, 400 * time.Millisecond, true},
		"at the end of a second":          {0, 999 * time.Millisecond, 1100 * time.Millisecond, true},
		"behind by the bound":             {0, -600 * time.Millisecond, -500 * time.Millisecond, true},
		"behind by more":                  {0, -600 * time.Millisecond, -501 * time.Millisecond, false},
		"ahead by the bound":              {0, 1500 * time.Millisecond, 1600 * time.Millisecond, true},
		"ahead by more":                   {0, 1501 * time.Millisecond, 1600 * time.Millisecond, false},
		"a long way is no proof":          {0, -5 * time.Second, 5 * time.Second, true},
		"far behind after a long way":     {time.Minute, -5 * time.Second, 5 * time.Second, false},
		"far ahead after a long way":      {-time.Minute, -5 * time.Second, 5 * time.Second, false},
		"behind, also if it came at once": {2 * time.Second, 0, 0, false},
	} {
		clock := clock{bound: 500 * time.Millisecond}
		clock.compare(at.Add(c.date), at.Add(c.sent), at.Add(c.came))
		if clock.right() != c.right {
			t.Errorf("%s: right is %v", name, clock.right())
		}
	}
	var unknown clock
	if unknown.right() {
		t.Error("a clock that was compared with nothing is right")
	}
}

func TestStore_ClaimsNothingByAClockThatIsOff(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	for name, c := range map[string]struct {
		by   time.Duration
		want string
	}{
		"ahead":  {-10 * time.Second, "ahead of"},
		"behind": {10 * time.Second, "behind"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := func(r dedupstore.Request) {
				t.Helper()
				var setup *dedupstore.SetupError
				_, err := dedupstore.ClaimOne(t.Context(), s, r)
				if !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want that the clock is %s the endpoint's", err, c.want)
				}
			}
			proxy.Inject(nil)
			before := claim(t, s, request(name+" held"), dedupstore.AcquiredRun).Claim

			// The reply to the claim itself shows it.
			proxy.Inject(func(string) dynamotest.Fault { return dynamotest.Fault{DateBy: c.by} })
			first := request(name)
			refused(first)

			// From then on nothing is written.
			wrote := 0
			proxy.Inject(func(operation string) dynamotest.Fault {
				if operation == "PutItem" {
					wrote++
				}
				return dynamotest.Fault{DateBy: c.by}
			})
			refused(request(name + " later"))
			if wrote > 0 {
				t.Errorf("%d writes", wrote)
			}
			settle(t, s, before, succeeded("")) // what is held can be settled
			if _, err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Check says %v", err)
			}

			// The clock is mended.
			proxy.Inject(nil)
			claim(t, s, first, dedupstore.AcquiredRun)
			claim(t, s, request(name+" later"), dedupstore.AcquiredRun)
		})
	}
}

func TestStore_LeasesLiveLongerByTwiceMaxSkew(t *testing.T) {
	t.Parallel()
	s, err := New(clientOf(t, dynamotest.Shared(t)), Config{Table: newTable(t), MaxSkew: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	claimtest.LongerLease(t, s, 2*time.Second)
}
