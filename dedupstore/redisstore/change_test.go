package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func change(t *testing.T, s *Store, k dedupstore.Key, c dedupstore.Change) {
	t.Helper()
	if err := s.Change(t.Context(), lookAt(t, s, k), c); err != nil {
		t.Fatal(err)
	}
}

var happened = dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}}

// Records of the version before have no reruns, and those of a later one have sections that nobody here knows.
func TestChange_OfRecordsOfOtherVersions(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	const later = "z00000004\x00l1\xff"
	put(t, s, rdb, key("rerun"), oldDoneByTwo+later)
	change(t, s, key("rerun"), dedupstore.Rerun{})
	seen := lookAt(t, s, key("rerun"))
	if seen.State != dedupstore.Retryable || seen.Attempts != 0 || seen.Returned != 0 || seen.Reruns != 1 || seen.Decided != 0 ||
		seen.Outcome.Reason != "card refused" || seen.Outcome.Result != nil || seen.Outcome.Produced != nil {
		t.Errorf("a record that is to run again is %+v", seen)
	}
	if left := time.Until(seen.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("it expires in %v, want an hour", left)
	}
	settle(t, s, claim(t, s, request("rerun"), dedupstore.AcquiredRun).Claim, failed())
	rerun := request("rerun")
	rerun.Rerun = lookAt(t, s, key("rerun")).Decided
	settle(t, s, claim(t, s, rerun, dedupstore.AcquiredRun).Claim, succeeded(""))
	if seen := lookAt(t, s, key("rerun")); seen.Reruns != 2 || len(seen.History) != 2 {
		t.Errorf("after two reruns the record is %+v", seen)
	}

	put(t, s, rdb, key("complete"), strings.Replace(oldDoneByTwo, "1Ef", "1Eu", 1)+later)
	before := lookAt(t, s, key("complete"))
	change(t, s, key("complete"), happened)
	seen = lookAt(t, s, key("complete"))
	if seen.Fence != before.Fence || seen.Decided != before.Decided || seen.Outcome.Kind != dedupstore.Succeeded ||
		string(seen.Outcome.Result) != "paid" || seen.Outcome.Reason != "" || seen.Returned != before.Returned {
		t.Errorf("completed, the record is %+v, before %+v", seen, before)
	}
	for _, id := range []string{"rerun", "complete"} {
		if raw := must(rdb.Get(t.Context(), s.name(key(id))).Result())(t); !strings.Contains(raw, later) {
			t.Errorf("%s: the record is %q, without what is not known", id, raw)
		}
	}
}

func TestChange_OfWhatCannotBeReadChangesNothing(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for _, raw := range []string{"2R", oldDone + "?"} {
		put(t, s, rdb, key("k"), raw)
		var unreadable *dedupstore.RecordError
		if err := s.Change(t.Context(), dedupstore.Record{Key: key("k")}, dedupstore.Forget{}); !errors.As(err, &unreadable) {
			t.Errorf("%q: %v, want a RecordError", raw, err)
		}
		if after := rdb.Get(t.Context(), s.name(key("k"))).Val(); after != raw {
			t.Errorf("%q became %q", raw, after)
		}
	}
}

func TestChange_AtMaxmemoryAndWithoutAnEnd(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s, rdb := newStore(t, server.Client()), server.Client()
	for _, id := range []string{"rerun", "complete", "forget"} {
		unknown := succeeded("")
		unknown.Outcome = dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "no answer"}
		settle(t, s, claim(t, s, request(id), dedupstore.AcquiredRun).Claim, unknown)
	}
	if !rdb.Persist(t.Context(), s.name(key("complete"))).Val() {
		t.Fatal("it had no end")
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	change(t, s, key("rerun"), dedupstore.Rerun{})
	change(t, s, key("complete"), happened)
	change(t, s, key("forget"), dedupstore.Forget{})
	claim(t, s, request("rerun"), dedupstore.AcquiredRun)
	claim(t, s, request("complete"), dedupstore.Done)
	if seen := lookAt(t, s, key("forget")); seen.State != dedupstore.Absent {
		t.Errorf("a forgotten record is %+v", seen)
	}
}

// A heartbeat, a takeover or a settlement between the look and the write makes a change look again.
func TestChange_LooksAgainIfTheRecordHasChangedMeanwhile(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	proxy := redistest.StartProxy(t, server.Addr)
	o := server.Options()
	o.Addr = proxy.Addr
	behind := redis.NewClient(o)
	t.Cleanup(func() { behind.Close() })
	s := newStore(t, behind)
	direct := must(New(server.Client(), s.config))(t)
	settle(t, direct, claim(t, direct, request("1"), dedupstore.AcquiredRun).Claim, failed())
	seen := lookAt(t, s, key("1"))
	rerun := request("1")
	rerun.Rerun = seen.Decided
	var once sync.Once
	proxy.Inject(func(e redistest.Exchange) redistest.Fault {
		if e.Has("evalsha") {
			once.Do(func() { claim(t, direct, rerun, dedupstore.AcquiredRun) })
		}
		return redistest.Fault{}
	})
	var refused *dedupstore.RefusedError
	if err := s.Change(t.Context(), seen, dedupstore.Forget{}); !errors.As(err, &refused) || refused.Found.State != dedupstore.Running {
		t.Errorf("%v, want a RefusedError: it runs again", err)
	}
}

// An operator changes records while consumers claim the same keys. Each message has one effect, and one more for each time
// that its outcome was forgotten or it was to run again; no two of its runs overlap.
func TestChange_BesideLiveClaims(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, ...string) *redistest.Server{
		"by script": redistest.Start, "conditional": redistest.StartValkey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changesBesideClaims(t, newStore(t, start(t).Client()))
		})
	}
}

func changesBesideClaims(t *testing.T, s *Store) {
	const keys, workers, operators = 12, 4, 2
	var effects, asked, active [keys]atomic.Int64
	id := func(i int) string { return fmt.Sprint("k", i) }
	var consuming, operating sync.WaitGroup
	var ended atomic.Bool
	for w := range workers {
		consuming.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for !ended.Load() {
				i := rnd.IntN(keys)
				a, err := dedupstore.ClaimOne(t.Context(), s, request(id(i)))
				if err != nil {
					t.Error(err)
					return
				}
				if a.Status != dedupstore.AcquiredRun {
					continue
				}
				if active[i].Add(1) != 1 {
					t.Errorf("%s runs twice at once", id(i))
				}
				settlement := []dedupstore.Settlement{
					succeeded(""), failed(), dedupstore.Release{Reason: "later", Uncounted: true},
					dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Unknown}},
				}[rnd.IntN(4)]
				if _, finishes := settlement.(dedupstore.Finish); finishes {
					effects[i].Add(1)
				}
				active[i].Add(-1)
				if err := dedupstore.SettleOne(t.Context(), s, a.Claim, settlement); err != nil {
					t.Errorf("%s: %v", id(i), err)
				}
			}
		})
	}
	var changes, refusals atomic.Int64
	for o := range operators {
		operating.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(o)))
			for range 400 {
				i := rnd.IntN(keys)
				seen := lookAt(t, s, key(id(i)))
				c := []dedupstore.Change{dedupstore.Forget{}, dedupstore.Rerun{}, happened}[rnd.IntN(3)]
				err := s.Change(t.Context(), seen, c)
				_, completes := c.(dedupstore.Complete)
				var refused *dedupstore.RefusedError
				switch {
				case errors.As(err, &refused):
					refusals.Add(1)
				case err != nil:
					t.Error(err)
				default:
					changes.Add(1)
					if !completes && seen.State == dedupstore.Finished {
						asked[i].Add(1)
					}
				}
			}
		})
	}
	operating.Wait()
	ended.Store(true)
	consuming.Wait()
	for i := range keys {
		a := must(dedupstore.ClaimOne(t.Context(), s, request(id(i))))(t)
		if a.Status == dedupstore.AcquiredRun {
			effects[i].Add(1)
			settle(t, s, a.Claim, succeeded(""))
			a = claim(t, s, request(id(i)), dedupstore.Done)
		}
		if a.Status != dedupstore.Done {
			t.Errorf("%s is lost: a claim is answered %s", id(i), a.Status)
		}
		if n, want := effects[i].Load(), 1+asked[i].Load(); n != want {
			t.Errorf("%s had %d effects, want %d", id(i), n, want)
		}
	}
	if changes.Load() < 50 || refusals.Load() < 50 {
		t.Errorf("%d changes and %d refusals: too few to tell", changes.Load(), refusals.Load())
	}
}
