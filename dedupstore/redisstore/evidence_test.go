package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Records as the program before evidence wrote them, all about one owner, "owner-of-old-records", or the ones after it.
const (
	oldOwner    = "\x7f\x13-|\x99d\u05cd"
	oldSecond   = "j1O\x9e7RO\x8b"     // second-owner-of-it
	oldThird    = "\fm;\xc9,\x045\x1a" // publisher-of-it-now
	oldContent  = "f][\t\xf6g\xe9\xbc<\xfd!c\u0097\x83X\xdf\xe0\r/\x91"
	oldTrace    = "t\n\xf7e\x19\x16\xcdC݄H\xeb!\x1c\x801\x9c\xb7\xadkqi 31\x01"
	oldMessages = `K0000002a[{"id":"dead-1","topic":"dead","key":"k"}]C0000002e[{"header":[["why","card"]],"payload":"eA=="}]`

	oldRun       = "1R-1700000714971628" + oldOwner + oldContent + oldTrace + "L0000000060000000"
	oldPlainRun  = "1R-1700000714972391" + oldOwner + oldContent + oldTrace + "l1700000774972512"
	oldStarted   = "1S-1700000714971628" + oldOwner + oldContent + oldTrace + "l1700000774974451"
	oldRetryable = "1T-1700000714971628" + oldOwner + "a0000000000n0000000001" + oldContent + oldTrace +
		"d1700000714977122M00000010database is down"
	oldRerun = "1R-1700000714977459" + oldSecond + "n0000000001b1700000714971628" + oldContent + oldTrace +
		"S00000008" + oldOwner + "l1700000774977459"
	oldPublishing = "1Pf1700000714977459" + oldSecond + "n0000000001b1700000714971628" + oldContent + oldTrace +
		"S00000008" + oldOwner + "h26999c0eM0000000ccard refusedB00000001r" + oldMessages + "l1700000774979956"
	oldToPublish = "1Qf1700000714982285" + oldThird + "n0000000001b1700000714971628e1700000714977459" + oldContent + oldTrace +
		"S00000010" + oldOwner + oldSecond + "h26999c0eM0000000ccard refusedB00000001r" + oldMessages + "l1700000774982285"
	oldExhausted = "1Qx1700000714985427" + oldThird + "b1700000714984261" + oldContent + oldTrace +
		"M000000151 of 1 attempts spentl1700000774985427"
	oldDone      = "1Ds1700000714983247" + oldOwner + "B00000004paid" + oldContent + oldTrace
	oldDoneByTwo = "1Ef1700000714982285" + oldThird + "n0000000001b1700000714971628e1700000714977459" + oldContent + oldTrace +
		"S00000010" + oldOwner + oldSecond + `M0000000ccard refusedB00000001rK0000002a[{"id":"dead-1","topic":"dead","key":"k"}]`
)

// put stores a record as it is.
func put(t *testing.T, s *Store, rdb redis.UniversalClient, k dedupstore.Key, raw string) {
	t.Helper()
	if err := rdb.Set(t.Context(), s.name(k), raw, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
}

func lookAt(t *testing.T, s *Store, k dedupstore.Key) dedupstore.Record {
	t.Helper()
	return must(s.Look(t.Context(), []dedupstore.Key{k}))(t)[0]
}

func TestRecord_OfTheVersionBeforeIsReadAndContinued(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	const owner, second, third = "owner-of-old-records", "second-owner-of-it", "publisher-of-it-now"
	at := time.UnixMicro
	refused := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card refused", Result: []byte("r"),
		Produced: []dedupstore.Produced{{ID: "dead-1", Topic: "dead", Key: "k"}}}
	message := dedupstore.Produced{ID: "dead-1", Topic: "dead", Key: "k", Header: map[string]string{"why": "card"}, Payload: []byte("x")}
	for name, test := range map[string]struct {
		raw    string
		seen   dedupstore.Record
		owner  string                // of the old record, and can settle
		settle dedupstore.Settlement // nil: there is nothing to settle
		status dedupstore.Status     // of another owner's claim
		past   dedupstore.Attempt    // of that claim, if it takes over
	}{
		"running": {
			oldRun, dedupstore.Record{State: dedupstore.Running, Fence: 1700000714971628, First: at(1700000714971628),
				Until: at(1700000774971628)},
			owner, succeeded("paid"), dedupstore.AcquiredRun, dedupstore.Attempt{},
		},
		"running, plain": {
			oldPlainRun, dedupstore.Record{State: dedupstore.Running, Fence: 1700000714972391, First: at(1700000714972391),
				Until: at(1700000774972512)},
			owner, dedupstore.Release{Reason: "again"}, dedupstore.AcquiredRun, dedupstore.Attempt{},
		},
		"started": {
			oldStarted, dedupstore.Record{State: dedupstore.Running, Started: true, Fence: 1700000714971628,
				First: at(1700000714971628), Until: at(1700000774974451)},
			owner, succeeded("paid"), dedupstore.AcquiredRun, dedupstore.Attempt{},
		},
		"retryable": {
			oldRetryable, dedupstore.Record{State: dedupstore.Retryable, Returned: 1, Fence: 1700000714971628,
				First: at(1700000714971628), Until: at(1700000714977122), Outcome: dedupstore.Outcome{Reason: "database is down"}},
			owner, dedupstore.Release{}, dedupstore.AcquiredRun, dedupstore.Attempt{Reason: "database is down"},
		},
		"running again": {
			oldRerun, dedupstore.Record{State: dedupstore.Running, Returned: 1, Fence: 1700000714977459,
				First: at(1700000714971628), Until: at(1700000774977459)},
			second, failed(), dedupstore.AcquiredRun, dedupstore.Attempt{},
		},
		"publishing": {
			oldPublishing, dedupstore.Record{State: dedupstore.Publishing, Returned: 1, Fence: 1700000714977459,
				Decided: 1700000714977459, First: at(1700000714971628), Until: at(1700000774979956), Outcome: refused},
			second, dedupstore.Published{Retention: time.Hour}, dedupstore.AcquiredPublish,
			dedupstore.Attempt{Reason: "card refused"},
		},
		"to publish": {
			oldToPublish, dedupstore.Record{State: dedupstore.Publishing, Returned: 1, Fence: 1700000714982285,
				Decided: 1700000714977459, First: at(1700000714971628), Until: at(1700000774982285), Outcome: refused},
			third, dedupstore.Published{Retention: time.Hour}, dedupstore.AcquiredPublish,
			dedupstore.Attempt{Reason: "card refused"},
		},
		"exhausted": {
			oldExhausted, dedupstore.Record{State: dedupstore.Publishing, Fence: 1700000714985427,
				Decided: 1700000714985427, First: at(1700000714984261), Until: at(1700000774985427),
				Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: "1 of 1 attempts spent"}},
			third, dedupstore.Published{Retention: time.Hour, Produced: []dedupstore.Produced{message}},
			dedupstore.AcquiredPublish, dedupstore.Attempt{Reason: "1 of 1 attempts spent"},
		},
		"done": {
			oldDone, dedupstore.Record{State: dedupstore.Finished, Fence: 1700000714983247, Decided: 1700000714983247,
				First:   at(1700000714983247),
				Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}},
			owner, succeeded("paid"), dedupstore.Done, dedupstore.Attempt{},
		},
		"done by two": {
			oldDoneByTwo, dedupstore.Record{State: dedupstore.Finished, Returned: 1, Fence: 1700000714982285,
				Decided: 1700000714977459, First: at(1700000714971628), Outcome: refused},
			third, dedupstore.Published{Retention: time.Hour}, dedupstore.Done, dedupstore.Attempt{},
		},
	} {
		want := test.seen
		want.Key, want.Trace, want.Claimed = key(name), request("").Trace, at(int64(want.Fence))
		if want.Attempts = 1; name == "retryable" {
			want.Attempts = 0
		}
		put(t, s, rdb, want.Key, test.raw)
		seen := lookAt(t, s, want.Key)
		if left := time.Until(seen.Expires); left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s: expires in %v, want an hour", name, left)
		}
		want.Expires = seen.Expires
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}

		settle(t, s, dedupstore.Claim{Key: want.Key, Owner: test.owner, Fence: want.Fence, Lease: time.Minute, Retention: time.Hour}, test.settle)
		if name == "publishing" || name == "to publish" {
			if done := claim(t, s, request(name), dedupstore.Done); !cmp.Equal(done.Outcome, refused) {
				t.Errorf("%s: after it was published: %+v", name, done.Outcome)
			}
		}

		put(t, s, rdb, want.Key, test.raw)
		r := request(name)
		r.Holder = "host:2"
		a := claim(t, s, r, test.status)
		if a.Found != want.State || a.Status == dedupstore.AcquiredPublish && name != "exhausted" && !cmp.Equal(a.Outcome.Produced, []dedupstore.Produced{message}) {
			t.Errorf("%s: another owner is answered %+v", name, a)
		}
		seen = lookAt(t, s, want.Key)
		if test.status == dedupstore.Done {
			continue
		}
		test.past.Claimed = want.Claimed
		if diff := cmp.Diff([]dedupstore.Attempt{test.past}, seen.History); diff != "" || seen.Holder != "host:2" {
			t.Errorf("%s: after a takeover by %q the history is %s", name, seen.Holder, diff)
		}
	}
}

// The next version may add sections. A program that does not know them reads the record all the same, and keeps them.
func TestRecord_SectionsOfALaterVersionAreKept(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	const later = "z00000004\x00l1\xffY00000000"
	kept := func(step string) {
		t.Helper()
		raw := must(rdb.Get(t.Context(), s.name(key("k"))).Result())(t)
		if !strings.Contains(raw, later) {
			t.Errorf("after %s the record is %q", step, raw)
		}
		if rec, err := decodeRecord(raw); err != nil || rec.sections['z'] != "\x00l1\xff" || !rec.has('Y') {
			t.Errorf("after %s the record is read as %+v, %v", step, rec, err)
		}
	}
	add := func() {
		t.Helper()
		name := s.name(key("k"))
		raw := must(rdb.Get(t.Context(), name).Result())(t)
		put(t, s, rdb, key("k"), raw[:len(raw)-1-leaseSize]+later+raw[len(raw)-1-leaseSize:])
	}
	first := claim(t, s, request("k"), dedupstore.AcquiredRun).Claim
	add()
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: first, Lease: time.Minute}); err != nil {
		t.Error(err)
	}
	kept("a heartbeat")
	settle(t, s, first, dedupstore.Release{})
	kept("a release")
	second := claim(t, s, request("k"), dedupstore.AcquiredRun).Claim
	kept("a claim")
	finish := producing(dedupstore.Outcome{Kind: dedupstore.Failed}, dedupstore.Produced{ID: "1"})
	settle(t, s, second, finish)
	kept("a finish")
	settle(t, s, second, dedupstore.Published{Retention: time.Hour})
	kept("published")
	rdb.Del(t.Context(), s.name(key("k")))
	third := claim(t, s, request("k"), dedupstore.AcquiredRun).Claim
	add()
	settle(t, s, third, succeeded(""))
	kept("a plain finish")
	claim(t, s, request("k"), dedupstore.Done)
}

func TestEvidence_ReasonsAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	for reason, want := range map[string]string{
		"short":                                  "short",
		strings.Repeat("x", 96):                  strings.Repeat("x", 96),
		strings.Repeat("x", 97):                  strings.Repeat("x", 96),
		"x" + strings.Repeat("é", 100):           "x" + strings.Repeat("é", 47),
		strings.Repeat("€", 40):                  strings.Repeat("€", 32),
		strings.Repeat("x", 93) + "😀" + "behind": strings.Repeat("x", 93),
	} {
		settle(t, s, claim(t, s, request(reason), dedupstore.AcquiredRun).Claim, dedupstore.Release{Reason: reason})
		if whole := lookAt(t, s, key(reason)).Outcome.Reason; whole != reason {
			t.Errorf("the last reason became %q, want %q", whole, reason)
		}
		claim(t, s, request(reason), dedupstore.AcquiredRun)
		if past := lookAt(t, s, key(reason)).History; len(past) != 1 || past[0].Reason != want {
			t.Errorf("the reason %q became %+v, want %q", reason, past, want)
		}
	}
}

func TestEvidence_HowLongRunsTook(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for took, want := range map[time.Duration]time.Duration{
		time.Nanosecond: time.Millisecond, 1500 * time.Millisecond: 1500 * time.Millisecond,
		28 * time.Hour: maxTook * time.Millisecond, 99 * 365 * 24 * time.Hour: maxTook * time.Millisecond,
	} {
		finish, release, slow := succeeded(""), dedupstore.Release{Took: took}, producing(succeeded("").Outcome, dedupstore.Produced{ID: "1"})
		finish.Took, slow.Took = took, took
		for what, settlement := range map[string]dedupstore.Settlement{"finish": finish, "release": release, "publish": slow} {
			k := key(what + took.String())
			c := claim(t, s, request(k.ID), dedupstore.AcquiredRun).Claim
			settle(t, s, c, settlement)
			if seen := lookAt(t, s, k); seen.Ended.Sub(seen.Claimed) != want {
				t.Errorf("%s after %v: claimed %v, ended %v", what, took, seen.Claimed, seen.Ended)
			}
		}
	}
	// An owner that only publishes has no run that could end.
	k := key("publish" + time.Nanosecond.String())
	expire(t, s, rdb, k)
	c := claim(t, s, request(k.ID), dedupstore.AcquiredPublish).Claim
	settle(t, s, c, dedupstore.Published{Retention: time.Hour})
	if seen := lookAt(t, s, k); !seen.Ended.IsZero() || len(seen.History) != 1 || seen.History[0].Ended.IsZero() {
		t.Errorf("published by another owner the record looks like %+v", seen)
	}
}

// Evidence decides nothing: a history that cannot be read is begun anew.
func TestEvidence_DamagedHistoryHoldsUpNoClaim(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for _, damaged := range []string{"", "x", "0000000g", "ffffffff", "-0000001", "00000011b1700000000000000", "00000012b1700000000000000"} {
		k := key("damaged " + damaged)
		settle(t, s, claim(t, s, request(k.ID), dedupstore.AcquiredRun).Claim, dedupstore.Release{Reason: "why"})
		edit(t, s, rdb, k, func(rec *record) { rec.sections['H'] = damaged })
		claim(t, s, request(k.ID), dedupstore.AcquiredRun)
		seen := lookAt(t, s, k)
		if n := len(seen.History); n == 0 || seen.History[n-1].Reason != "why" {
			t.Errorf("after a history of %q came %+v", damaged, seen.History)
		}
	}
}

func TestLook_SaysWhichRecordCannotBeRead(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	claim(t, s, request("good"), dedupstore.AcquiredRun)
	for what, raw := range map[string]string{"another version": "2R", "nothing": "", "history": oldDone + "H00000003bad"} {
		put(t, s, rdb, key(what), raw)
		_, err := s.Look(t.Context(), []dedupstore.Key{key("good"), key(what)})
		var unreadable *dedupstore.RecordError
		if !errors.As(err, &unreadable) || unreadable.Key != s.name(key(what)) {
			t.Errorf("%s: %v, want a RecordError", what, err)
		}
	}
	if records, err := s.Look(t.Context(), nil); err != nil || len(records) != 0 {
		t.Errorf("without keys: %v, %v", records, err)
	}
}

func TestNoteDuplicates_OfManyAtOnceAndForAsLongAsAsked(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	last := time.Now().Truncate(time.Millisecond)
	var noted []dedupstore.Duplicates
	keys := make([]dedupstore.Key, 2*maxBatch)
	for i := range keys {
		keys[i] = request(strings.Repeat("x", 1+i)).Key
		claim(t, s, request(keys[i].ID), dedupstore.AcquiredRun)
		noted = append(noted, dedupstore.Duplicates{Key: keys[i], Count: i + 1, Last: last, Retention: time.Hour})
	}
	noted = append(noted, dedupstore.Duplicates{Key: keys[0], Count: 1, Last: last, Retention: time.Hour})
	if err := s.NoteDuplicates(t.Context(), noted); err != nil {
		t.Fatal(err)
	}
	for i, seen := range must(s.Look(t.Context(), keys))(t) {
		if want := max(2, i+1); seen.Duplicates != want || !seen.LastDuplicate.Equal(last) {
			t.Errorf("%d duplicates, the last at %v, want %d at %v", seen.Duplicates, seen.LastDuplicate, want, last)
		}
	}
	name := s.name(keys[0]) + "?"
	if left := must(rdb.PTTL(t.Context(), name).Result())(t); left <= 59*time.Minute || left > time.Hour {
		t.Errorf("duplicates are remembered for %v, want an hour", left)
	}
	if _, err := dedupstore.ParseKey(strings.TrimPrefix(name, s.config.Prefix+":")); err == nil {
		t.Errorf("%q may be a record's name", name)
	}
	var invalid *dedupstore.InvalidError
	if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{{Count: 1}}); !errors.As(err, &invalid) {
		t.Errorf("duplicates of no key: %v, want an InvalidError", err)
	}
}

// A user without the right to count can still do all else: evidence decides nothing.
func TestNoteDuplicates_WithoutTheRightChangesNothingElse(t *testing.T) {
	t.Parallel()
	s := newStore(t, as(t, ownServer(t), "countless", "-hincrby"))
	plainly(t, s)
	err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{{Key: key("1"), Count: 1, Last: time.Now(), Retention: time.Hour}})
	if err == nil || s.barred.Load() {
		t.Errorf("error %v; plain claims are barred: %v", err, s.barred.Load())
	}
	settle(t, s, claim(t, s, request("1"), dedupstore.AcquiredRun).Claim, succeeded(""))
}

func TestLook_OnACluster(t *testing.T) {
	t.Parallel()
	s := newStore(t, redistest.StartCluster(t).Client())
	keys := make([]dedupstore.Key, 60)
	var noted []dedupstore.Duplicates
	for i, r := range requests(len(keys)) {
		keys[i] = r.Key
		claim(t, s, r, dedupstore.AcquiredRun)
		noted = append(noted, dedupstore.Duplicates{Key: r.Key, Count: 2, Last: time.Now(), Retention: time.Hour})
	}
	if err := s.NoteDuplicates(t.Context(), noted); err != nil {
		t.Fatal(err)
	}
	for i, seen := range must(s.Look(t.Context(), keys))(t) {
		if seen.Key != keys[i] || seen.State != dedupstore.Running || seen.Duplicates != 2 {
			t.Errorf("%d looks like %+v", i, seen)
		}
	}
}
