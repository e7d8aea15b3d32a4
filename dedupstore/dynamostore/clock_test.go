package dynamostore

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/smithy-go/middleware"

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
	for _, set := range []time.Duration{-10 * time.Second, 10 * time.Second} {
		clock := clock{bound: 500 * time.Millisecond}
		clock.compare(at, at, at)
		clock.last.Load().wall = clock.last.Load().wall.Add(set)
		if clock.right() {
			t.Errorf("a clock that was set by %v since is right", set)
		}
	}
	var unknown clock
	if unknown.right() {
		t.Error("a clock that was compared with nothing is right")
	}
}

// A host that is wrong by 10 s must not be trusted again because a reply took 10 s.
func TestClock_ASlowReplyDoesNotUndoAProof(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clock{bound: 500 * time.Millisecond}
		reply := func(ahead, took time.Duration) bool { // of this host
			date := time.Now().Truncate(time.Second)
			c.compare(date, time.Now().Add(ahead-took), time.Now().Add(ahead))
			return c.right()
		}
		if reply(10*time.Second, 50*time.Millisecond) || reply(10*time.Second, 12*time.Second) {
			t.Error("the clock is right although it is 10 s ahead")
		}
		c.learn(middleware.Metadata{}, time.Now())
		if c.right() {
			t.Error("a reply without a date made the clock right")
		}
		if !reply(0, 60*time.Millisecond) {
			t.Error("the clock is not right as soon as it was set")
		}
		if reply(10*time.Second, 50*time.Millisecond) {
			t.Error("the clock is right again")
		}
		time.Sleep(keepFor + time.Second)
		if !reply(10*time.Second, 12*time.Second) {
			t.Error("old proof counts for ever")
		}
	})
}

func TestStore_ClaimsNothingByAClockThatIsOff(t *testing.T) {
	t.Parallel()
	unmoved, proxy := throughProxy(t)
	s, clock := clocked(t, unmoved.client, unmoved.table)
	for name, c := range map[string]struct {
		by   time.Duration
		want string
	}{
		"ahead":  {-10 * time.Second, "ahead of"},
		"behind": {10 * time.Second, "behind"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := func(err error) {
				t.Helper()
				var setup *dedupstore.SetupError
				if !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want that the clock is %s the endpoint's", err, c.want)
				}
			}
			refused := func(r dedupstore.Request) {
				t.Helper()
				_, err := dedupstore.ClaimOne(t.Context(), s, r)
				wrong(err)
			}
			proxy.Inject(nil)
			ended := request(name + " held")
			ended.Lease = time.Millisecond // it has ended by this host's clock
			before := claim(t, s, ended, dedupstore.AcquiredRun).Claim
			clock.Advance(ended.Lease + s.slack + time.Millisecond)

			// The reply to the claim itself shows it.
			proxy.Inject(func(string) dynamotest.Fault { return dynamotest.Fault{DateBy: c.by} })
			first := request(name)
			refused(first)
			refused(first) // although its owner has the record
			seen := dedupstore.Record{Key: before.Key, State: dedupstore.Running, Fence: before.Fence}
			wrong(s.Change(t.Context(), seen, dedupstore.Forget{}))

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

// A refusal brings the item, and so a lease that has ended by this host's clock. Its Date shows that it has not.
func TestStore_TakesNothingOverByAClockThatARefusalShowsToBeOff(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	proxy.AddOldItems(keyAttribute)
	claim(t, s, request("0"), dedupstore.AcquiredRun) // the clock was right
	other, clock := clocked(t, clientOf(t, proxy.URL, once), s.table)
	s.wall = clock.Now
	r := request("1")
	r.Lease = time.Millisecond
	owned := claim(t, other, r, dedupstore.AcquiredRun).Claim
	clock.Advance(r.Lease + s.slack + 10*time.Millisecond)
	proxy.Inject(func(string) dynamotest.Fault { return dynamotest.Fault{DateBy: -10 * time.Second} })
	var setup *dedupstore.SetupError
	if _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); !errors.As(err, &setup) || proxy.Added() == 0 {
		t.Errorf("got %v, want that the clock is off; %d items were added", err, proxy.Added())
	}
	settle(t, other, owned, succeeded(""))
}

func TestStore_LeasesLiveLongerByTwiceMaxSkew(t *testing.T) {
	t.Parallel()
	s, err := New(clientOf(t, dynamotest.Shared(t)), Config{Table: newTable(t), MaxSkew: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	claimtest.LongerLease(t, s, 2*time.Second)
}
