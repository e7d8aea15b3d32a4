package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestScripts_RunTwiceLeaveTheSameRecordAndAnswer(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client()
		rapid.Check(t, func(rt *rapid.T) { runTwice(t, rt, rdb, newStore(t, rdb)) })
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
		t.Cleanup(func() { rdb.Close() })
		s := newStore(t, rdb)
		s.ready.Store(true)
		rapid.Check(t, func(rt *rapid.T) { runTwice(t, rt, rdb, s) })
	})
}

// runTwice draws operations on one key, mostly by owners that came before, and runs each twice. Before each the time to
// live is set to old, less than any that an operation sets: those that change the record renew it, the others leave it.
func runTwice(t *testing.T, rt *rapid.T, rdb *redis.Client, s *Store) {
	const old = 10 * time.Minute
	name := s.name(key("k"))
	if err := rdb.Del(t.Context(), name).Err(); err != nil {
		rt.Fatal(err)
	}
	claims := []dedupstore.Claim{{Key: key("k"), Owner: "nobody-was-granted", Fence: 1, Lease: time.Hour, Retention: time.Hour}}
	var decided uint64
	for range rapid.IntRange(5, 25).Draw(rt, "steps") {
		what, step := drawStep(rt, s, claims, decided)
		if before := contents(rt, rdb, name); rapid.IntRange(0, 3).Draw(rt, "expire") == 0 && (before.sections.has('l') || before.sections.has('L')) {
			expire(t, s, rdb, key("k"))
		}
		record0 := contents(rt, rdb, name)
		rdb.PExpire(t.Context(), name, old)
		a1, class1 := step(t)
		record1 := contents(rt, rdb, name)
		ttl1 := rdb.PTTL(t.Context(), name).Val()
		rdb.PExpire(t.Context(), name, old)
		a2, class2 := step(t)
		record2 := contents(rt, rdb, name)
		ttl2 := rdb.PTTL(t.Context(), name).Val()
		changed := !reflect.DeepEqual(record0, record1) || what == "extend" && class1 != "lost" // it may come to the same millisecond
		if record1.fence > 0 && ttl1 > old != changed {
			rt.Fatalf("%s: %s: the time to live became %v, from %v; the record changed:\n%s", what, class1, ttl1, old, fmt.Sprintf("%+v\n%+v", record0, record1))
		}
		if record2.fence > 0 && (ttl2 <= 0 || ttl2 > old) && (what != "extend" || class2 == "lost") {
			rt.Fatalf("%s, repeated: %s: the time to live became %v, from %v", what, class2, ttl2, old)
		}
		if what == "extend" { // each counts from its own now
			delete(record1.sections, 'l')
			delete(record2.sections, 'l')
		}
		if class1 != class2 {
			rt.Fatalf("%s: first %s, then %s", what, class1, class2)
		}
		if a1.Claim != a2.Claim || !cmp.Equal(a1.Outcome, a2.Outcome) {
			rt.Fatalf("%s: first %+v, then %+v", what, a1, a2)
		}
		if seen, err := record2.look(); record2.fence > 0 && (err != nil || len(seen.History) > dedupstore.MaxHistory) {
			rt.Fatalf("%s left a record that looks like %+v, %v", what, seen, err)
		}
		if !reflect.DeepEqual(record1, record2) {
			rt.Fatalf("%s changed the record when repeated:\n%+v\n%+v", what, record1, record2)
		}
		if a1.Claim.Fence != 0 {
			claims = append(claims, a1.Claim)
		}
		if a1.Status == dedupstore.Done {
			decided = a1.Fence
		}
	}
}

// drawStep draws an operation with its arguments.
func drawStep(rt *rapid.T, s *Store, claims []dedupstore.Claim, decided uint64) (string, func(*testing.T) (dedupstore.Answer, string)) {
	c := claims[rapid.IntRange(max(0, len(claims)-3), len(claims)-1).Draw(rt, "claim")]
	settlement := func(what string, st dedupstore.Settlement) (string, func(*testing.T) (dedupstore.Answer, string)) {
		return what, func(t *testing.T) (dedupstore.Answer, string) {
			return dedupstore.Answer{}, class("", dedupstore.SettleOne(t.Context(), s, c, st))
		}
	}
	switch what := rapid.SampledFrom([]string{"claim", "claim", "claim again", "extend", "finish", "publish", "release", "published"}).Draw(rt, "what"); what {
	case "claim", "claim again":
		r := request("k")
		r.Lease, r.MaxAttempts = time.Hour, rapid.IntRange(1, 3).Draw(rt, "most")
		r.Holder = rapid.SampledFrom([]string{"", "a:1", "a host of 28 bytes at most:2"}).Draw(rt, "holder")
		r.ParkExpired = rapid.Bool().Draw(rt, "park")
		r.SuspectAfter = rapid.IntRange(0, 2).Draw(rt, "suspect")
		if rapid.Bool().Draw(rt, "rerun") {
			r.Rerun = decided
		}
		if rapid.IntRange(0, 9).Draw(rt, "content") == 0 {
			r.Fingerprint.Sum = "other"
		}
		if what == "claim again" {
			r.Owner = c.Owner
		}
		return what, func(t *testing.T) (dedupstore.Answer, string) {
			a, err := dedupstore.ClaimOne(t.Context(), s, r)
			return a, class(string(a.Status), err)
		}
	case "extend":
		return what, func(t *testing.T) (dedupstore.Answer, string) {
			return dedupstore.Answer{}, class("", dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: time.Hour, Started: true}))
		}
	case "finish":
		return settlement(what, dedupstore.Finish{Retention: time.Hour, Took: drawTook(rt), Outcome: dedupstore.Outcome{
			Kind: rapid.SampledFrom([]dedupstore.Kind{dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}).Draw(rt, "kind"),
		}})
	case "publish":
		return settlement(what, producing(dedupstore.Outcome{Kind: dedupstore.Failed}, dedupstore.Produced{ID: "1", Payload: []byte("x")}))
	case "release":
		return settlement(what, dedupstore.Release{
			Delay:     time.Duration(rapid.IntRange(0, 1).Draw(rt, "delay")) * time.Hour,
			Uncounted: rapid.Bool().Draw(rt, "uncounted"), Reason: "again", Took: drawTook(rt),
		})
	default:
		return settlement(what, dedupstore.Published{Retention: time.Hour})
	}
}

func drawTook(rt *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(0, 3).Draw(rt, "took")) * time.Second
}

// class is what an answer says, without what differs between two askings.
func class(status string, err error) string {
	switch {
	case err == nil:
		return "ok " + status
	case errors.Is(err, dedupstore.ErrClaimLost):
		return "lost"
	}
	return fmt.Sprint("error ", err)
}

// contents is the record, or a zero one if there is none.
func contents(rt *rapid.T, rdb *redis.Client, name string) record {
	raw, err := rdb.Get(rt.Context(), name).Result()
	if errors.Is(err, redis.Nil) {
		return record{}
	}
	if err != nil {
		rt.Fatal(err)
	}
	rec, err := decodeRecord(raw)
	if err != nil {
		rt.Fatal(err)
	}
	return rec
}
