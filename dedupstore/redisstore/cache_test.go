package redisstore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/dedupstore"
)

var (
	cachedPrint  = dedupstore.Fingerprint{Scheme: "sha256", Sum: "one"}
	foreignPrint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "two"}
	otherScheme  = dedupstore.Fingerprint{Scheme: "json.v2", Sum: "two"}
)

// asking is a claim of the key by one who has not asked before.
func asking(id string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: "owner-of-the-duplicate", Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3, Fingerprint: cachedPrint,
	}
}

// paid is what Redis tells of a message that has succeeded.
func paid(result string) dedupstore.Answer {
	return dedupstore.Answer{
		Status: dedupstore.Done, Found: dedupstore.Finished, Fence: 7, Age: time.Minute,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Result: []byte(result), Truncated: true,
			Produced: []dedupstore.Produced{{ID: "receipt-1", Topic: "receipts", Key: "customer-7"}},
		},
	}
}

// cached is a cache that was told of a success an hour before its window ends.
func cached(id string, sent time.Time) *cache {
	c := newCache(10)
	c.put(asking(id).Key, cachedPrint, paid("12.50"), sent, time.Hour)
	return c
}

func wantMiss(t *testing.T, c *cache, r dedupstore.Request, now time.Time) {
	t.Helper()
	if a, ok := c.get(r, now); ok {
		t.Errorf("the cache answers %+v, want nothing", a)
	}
}

func wantHit(t *testing.T, c *cache, r dedupstore.Request, now time.Time, want dedupstore.Answer) {
	t.Helper()
	want.Aside = true
	a, ok := c.get(r, now)
	if !ok {
		t.Errorf("the cache does not know %q", r.Key.ID)
	} else if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("the cache answers (-want +got):\n%s", diff)
	}
}

func TestCache_AnswersAsRedisDid(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	c := cached("1", sent)
	wantHit(t, c, asking("1"), sent, paid("12.50"))
	want := paid("12.50")
	want.Age = time.Minute + 10*time.Second
	wantHit(t, c, asking("1"), sent.Add(10*time.Second), want)
	wantHit(t, c, asking("1"), sent.Add(-time.Second), paid("12.50")) // asked before, looked up after
	wantMiss(t, c, asking("2"), sent)
}

func TestCache_OffKnowsNothing(t *testing.T) {
	t.Parallel()
	c := newCache(0)
	c.put(asking("1").Key, cachedPrint, paid("12.50"), time.Now(), time.Hour)
	wantMiss(t, c, asking("1"), time.Now())
	c.forget(asking("1").Key)
	if c != nil {
		t.Errorf("a cache of no entries is %v, want nil", c)
	}
}

func TestCache_NeverAnswersAfterTheWindow(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{60 * time.Millisecond, time.Minute, 24 * time.Hour, 30 * 24 * time.Hour, maxLease} {
		t.Run(window.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, sent := newCache(1), time.Now()
				<-time.After(20 * time.Millisecond) // the reply takes its time
				c.put(asking("1").Key, cachedPrint, paid("12.50"), sent, window)
				usable := window - window/1000 - time.Millisecond
				<-time.After(time.Until(sent.Add(usable - 1)))
				if _, ok := c.get(asking("1"), time.Now()); !ok {
					t.Errorf("the cache does not know the key at %v of %v", time.Since(sent), window)
				}
				<-time.After(1)
				wantMiss(t, c, asking("1"), time.Now())
				if n := c.entries.Len(); n != 0 {
					t.Errorf("%d entries are left after the window", n)
				}
			})
		})
	}
}

// A clock may run 500 ppm fast and the other as much slow.
func TestCache_NeverAnswersAfterTheWindowOfAFastServer(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{2 * time.Millisecond, time.Second, time.Hour, 30 * 24 * time.Hour} {
		sent := time.Now()
		c := newCache(1)
		c.put(asking("1").Key, cachedPrint, paid("12.50"), sent, window)
		over := time.Duration(float64(window) * (1 - 500e-6) / (1 + 500e-6)) // by this clock
		wantMiss(t, c, asking("1"), sent.Add(over))
	}
}

func TestCache_KeepsNothingThatIsNearlyOverOrOfUnknownEnd(t *testing.T) {
	t.Parallel()
	for _, left := range []time.Duration{-time.Hour, 0, 1, time.Millisecond} {
		c, sent := newCache(1), time.Now()
		c.put(asking("1").Key, cachedPrint, paid("12.50"), sent, left)
		wantMiss(t, c, asking("1"), sent.Add(-time.Hour))
		if n := c.entries.Len(); n != 0 {
			t.Errorf("an answer with %v left is kept", left)
		}
	}
}

func TestCache_WindowIsOverWhenEitherClockSaysSo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ jump, after time.Duration }{
		"the machine slept, and its monotonic clock with it": {2 * time.Hour, 0},
		"the wall clock was set back":                        {-2 * time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := time.Now()
			c := cached("1", sent)
			e, _ := c.entries.Get(asking("1").Key)
			e.wall = e.wall.Add(-tc.jump)
			c.entries.Add(asking("1").Key, e)
			wantMiss(t, c, asking("1"), sent.Add(tc.after))
		})
	}
}

func TestCache_RerunIsForRedisToAnswer(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	c := cached("1", sent)
	r := asking("1")
	r.Rerun = 7
	wantMiss(t, c, r, sent)
	wantHit(t, c, asking("1"), sent, paid("12.50"))
}

func TestCache_OtherContentIsAMismatch(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	mismatch := dedupstore.Answer{
		Status: dedupstore.Mismatch, Found: dedupstore.Finished, Age: time.Minute, Trace: paid("").Trace,
	}
	for name, tc := range map[string]struct {
		record, asked dedupstore.Fingerprint
		want          dedupstore.Answer
	}{
		"same":                {cachedPrint, cachedPrint, paid("12.50")},
		"other content":       {cachedPrint, foreignPrint, mismatch},
		"other scheme":        {cachedPrint, otherScheme, paid("12.50")},
		"none in the claim":   {cachedPrint, dedupstore.Fingerprint{}, paid("12.50")},
		"none in the record":  {dedupstore.Fingerprint{}, cachedPrint, paid("12.50")},
		"none in both places": {dedupstore.Fingerprint{}, dedupstore.Fingerprint{}, paid("12.50")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := newCache(1), asking("1")
			c.put(r.Key, tc.record, paid("12.50"), sent, time.Hour)
			r.Fingerprint = tc.asked
			wantHit(t, c, r, sent, tc.want)
		})
	}
}

func TestCache_KeepsSuccessesOnly(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*dedupstore.Answer){
		"failed":          func(a *dedupstore.Answer) { a.Outcome.Kind = dedupstore.Failed },
		"unknown":         func(a *dedupstore.Answer) { a.Outcome.Kind = dedupstore.Unknown },
		"to be published": func(a *dedupstore.Answer) { a.Status = dedupstore.AcquiredPublish },
		"running":         func(a *dedupstore.Answer) { a.Status = dedupstore.AcquiredRun },
		"busy":            func(a *dedupstore.Answer) { a.Status = dedupstore.Busy },
		"mismatch":        func(a *dedupstore.Answer) { a.Status = dedupstore.Mismatch },
		"large result":    func(a *dedupstore.Answer) { a.Outcome.Result = make([]byte, maxCachedOutcome) },
		"long topics":     func(a *dedupstore.Answer) { a.Outcome.Produced[0].Topic = strings.Repeat("t", maxCachedOutcome) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, sent, a := newCache(1), time.Now(), paid("12.50")
			change(&a)
			c.put(asking("1").Key, cachedPrint, a, sent, time.Hour)
			wantMiss(t, c, asking("1"), sent)
		})
	}
}

func TestCache_KeepsResultsUpToTheBound(t *testing.T) {
	t.Parallel()
	c, sent, a := newCache(1), time.Now(), paid("")
	a.Outcome.Produced = nil
	a.Outcome.Result = make([]byte, maxCachedOutcome)
	c.put(asking("1").Key, cachedPrint, a, sent, time.Hour)
	wantHit(t, c, asking("1"), sent, a)
}

func TestCache_SharesNoBytes(t *testing.T) {
	t.Parallel()
	c, sent, a := newCache(1), time.Now(), paid("12.50")
	c.put(asking("1").Key, cachedPrint, a, sent, time.Hour)
	for range 3 {
		copy(a.Outcome.Result, "99")
		a.Outcome.Produced[0].ID = "forged"
		a, _ = c.get(asking("1"), sent)
		wantHit(t, c, asking("1"), sent, paid("12.50"))
	}
}

func TestCache_ForgetsTheLeastRecentlyAskedBeyondItsBound(t *testing.T) {
	t.Parallel()
	c, sent := newCache(3), time.Now()
	for _, id := range []string{"1", "2", "3"} {
		c.put(asking(id).Key, cachedPrint, paid(id), sent, time.Hour)
	}
	wantHit(t, c, asking("1"), sent, paid("1"))
	c.put(asking("4").Key, cachedPrint, paid("4"), sent, time.Hour)
	wantMiss(t, c, asking("2"), sent)
	for _, id := range []string{"1", "3", "4"} {
		wantHit(t, c, asking(id), sent, paid(id))
	}
}

func TestCache_ForgetsOnRequest(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	c := cached("1", sent)
	c.forget(asking("2").Key)
	wantHit(t, c, asking("1"), sent, paid("12.50"))
	c.forget(asking("1").Key)
	wantMiss(t, c, asking("1"), sent)
}

// What is put for a key is all that is ever answered for it, and only while its window lasts.
func TestCache_NeverAnswersWhatWasNotPut(t *testing.T) {
	t.Parallel()
	type known struct {
		result string
		until  time.Time
	}
	rapid.Check(t, func(t *rapid.T) {
		const size = 4
		c, now, model, puts := newCache(size), time.Now(), map[string]known{}, 0
		key := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6"})
		span := rapid.Map(rapid.IntRange(0, 5000), func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id, sent, left := key.Draw(t, "key"), now.Add(-span.Draw(t, "took")), span.Draw(t, "left")
				puts++
				result := fmt.Sprint(id, " ", puts)
				c.put(asking(id).Key, cachedPrint, paid(result), sent, left)
				if left > clockMargin(left) {
					model[id] = known{result, sent.Add(left - clockMargin(left))}
				}
			},
			"forget": func(t *rapid.T) {
				id := key.Draw(t, "key")
				c.forget(asking(id).Key)
				delete(model, id)
			},
			"wait": func(t *rapid.T) { now = now.Add(span.Draw(t, "time")) },
			"get": func(t *rapid.T) {
				id := key.Draw(t, "key")
				a, ok := c.get(asking(id), now)
				if k := model[id]; ok && (string(a.Outcome.Result) != k.result || !now.Before(k.until)) {
					t.Fatalf("%q is answered %q, want %q, until %v (now %v)", id, a.Outcome.Result, k.result, k.until, now)
				}
				if n := c.entries.Len(); n > size {
					t.Fatalf("there are %d entries, want %d at most", n, size)
				}
			},
		})
	})
}

func TestCache_ManyAtOnceGetWhatIsOfTheirKey(t *testing.T) {
	t.Parallel()
	const workers, rounds = 8, 500
	c, sent := newCache(5), time.Now()
	var group sync.WaitGroup
	var hits atomic.Int64
	for w := range workers {
		group.Go(func() {
			for i := range rounds {
				id := fmt.Sprint((w + i/4) % 10)
				a, ok := c.get(asking(id), sent)
				if ok {
					hits.Add(1)
				}
				switch {
				case ok && string(a.Outcome.Result) != id:
					t.Errorf("%q is answered %q", id, a.Outcome.Result)
				case ok && i%7 == 0:
					c.forget(asking(id).Key)
				case ok:
					a.Outcome.Result[0] = 'x' // it is the caller's
				default:
					c.put(asking(id).Key, cachedPrint, paid(id), sent, time.Hour)
				}
			}
		})
	}
	group.Wait()
	if hits.Load() == 0 || c.entries.Len() > 5 {
		t.Errorf("%d hits, %d entries, want some and 5 at most", hits.Load(), c.entries.Len())
	}
}

func BenchmarkCache_Hit(b *testing.B) {
	sent := time.Now()
	c, r := cached("1", sent), asking("1")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := c.get(r, sent); !ok {
			b.Fatal("a miss")
		}
	}
}
