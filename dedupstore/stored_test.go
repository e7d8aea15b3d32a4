package dedupstore_test

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var epoch = time.UnixMicro(1_800_000_000_000_000)

// after makes a record of the operations, a second apart.
func after(t *testing.T, ops ...func(s dedupstore.Stored, now time.Time) *dedupstore.Stored) dedupstore.Stored {
	t.Helper()
	var s dedupstore.Stored
	for i, op := range ops {
		next := op(s, epoch.Add(time.Duration(i-len(ops))*time.Second))
		if next == nil {
			t.Fatalf("operation %d changes nothing", i)
		}
		s = *next
	}
	return s
}

type storedOp = func(dedupstore.Stored, time.Time) *dedupstore.Stored

func claimed(r dedupstore.Request) storedOp {
	return func(s dedupstore.Stored, now time.Time) *dedupstore.Stored {
		next, _ := s.Claim(r, now)
		return next
	}
}

// settled settles as the record's owner.
func settled(with dedupstore.Settlement) storedOp {
	return func(s dedupstore.Stored, now time.Time) *dedupstore.Stored {
		next, _ := s.Settle(claimOf(s), with, now)
		return next
	}
}

func extended(lease time.Duration) storedOp {
	return func(s dedupstore.Stored, now time.Time) *dedupstore.Stored {
		next, _ := s.Extend(dedupstore.Extension{Claim: claimOf(s), Lease: lease, Started: true}, now)
		return next
	}
}

func claimOf(s dedupstore.Stored) dedupstore.Claim {
	return dedupstore.Claim{
		Key: request("1").Key, Owner: s.Owner, Fence: s.Fence, Lease: time.Minute, Retention: time.Hour,
	}
}

var (
	succeeds   = dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
	fails      = dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: time.Hour}
	publishing = dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
		Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "out"}},
	}}
)

func TestStored_AnswersClaimsInTheOrderOfTheContract(t *testing.T) {
	t.Parallel()
	const run, publish = dedupstore.AcquiredRun, dedupstore.AcquiredPublish
	first := request("1")
	brief, short, other, again := first, first, first, first
	brief.Lease, short.Lease = time.Millisecond, time.Second
	other.Owner = "another-owner-token"
	again.Owner = "a-third-owner-token"
	parks, last, content := other, other, other
	parks.ParkExpired, last.MaxAttempts = true, 1
	content.Fingerprint = dedupstore.Fingerprint{Scheme: "s", Sum: "b"}
	marked := first
	marked.Fingerprint = dedupstore.Fingerprint{Scheme: "s", Sum: "a"}
	for name, c := range map[string]struct {
		ops     []storedOp
		r       dedupstore.Request
		rerun   bool
		want    dedupstore.Status
		kind    dedupstore.Kind
		attempt int
		writes  bool
	}{
		"absent":        {nil, first, false, run, "", 1, true},
		"other content": {[]storedOp{claimed(marked)}, content, false, dedupstore.Mismatch, "", 0, false},
		"done": {
			[]storedOp{claimed(first), settled(succeeds)}, other, false, dedupstore.Done, "succeeded", 0, false},
		"done, a rerun": {[]storedOp{claimed(first), settled(fails)}, other, true, run, "", 1, true},
		"success, a rerun": {
			[]storedOp{claimed(first), settled(succeeds)}, other, true, dedupstore.Done, "succeeded", 0, false},
		"asked again": {[]storedOp{claimed(first)}, first, false, run, "", 1, false},
		"asked again, expired": {
			[]storedOp{claimed(brief)}, brief, false, run, "", 1, false},
		"asked again, publishing": {
			[]storedOp{claimed(first), settled(publishing)}, first, false, publish, "succeeded", 1, false},
		"late copy": {
			[]storedOp{claimed(first), settled(dedupstore.Release{})}, first, false, dedupstore.Busy, "", 0, false},
		"live lease": {[]storedOp{claimed(first)}, other, false, dedupstore.Busy, "", 0, false},
		"not due": {
			[]storedOp{claimed(first), settled(dedupstore.Release{Delay: time.Hour})},
			other, false, dedupstore.Busy, "", 0, false},
		"due":                     {[]storedOp{claimed(first), settled(dedupstore.Release{})}, other, false, run, "", 2, true},
		"expired":                 {[]storedOp{claimed(brief)}, other, false, run, "", 2, true},
		"at the end of the lease": {[]storedOp{claimed(short)}, other, false, run, "", 2, true},
		"at the moment when it is due": {
			[]storedOp{claimed(first), settled(dedupstore.Release{Delay: time.Second})}, other, false, run, "", 2, true},
		"expired, not started, parks": {
			[]storedOp{claimed(brief)}, parks, false, run, "", 2, true},
		"expired, started, parks": {
			[]storedOp{claimed(first), extended(time.Millisecond)}, parks, false, publish, "unknown", 1, true},
		"attempts spent": {[]storedOp{claimed(brief)}, last, false, publish, "failed", 1, true},
		"expired publish step": {
			[]storedOp{claimed(first), settled(publishing), extended(time.Millisecond)},
			again, false, publish, "succeeded", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := after(t, c.ops...)
			if c.rerun {
				c.r.Rerun = s.Decided
			}
			next, a := s.Claim(c.r, epoch)
			if a.Status != c.want || a.Outcome.Kind != c.kind || a.Claim.Attempt != c.attempt ||
				(next != nil) != c.writes {
				t.Errorf("answered %s, outcome %q, attempt %d, writes %v; want %s, %q, %d, %v",
					a.Status, a.Outcome.Kind, a.Claim.Attempt, next != nil, c.want, c.kind, c.attempt, c.writes)
			}
			if c.writes && (next.Fence <= s.Fence || !next.Expires.Equal(epoch.Add(c.r.Lease+c.r.Retention))) {
				t.Errorf("fence %d after %d, expires %v", next.Fence, s.Fence, next.Expires)
			}
		})
	}
}

func TestStored_SettlesForTheOwnerOnly(t *testing.T) {
	t.Parallel()
	first := request("1")
	publish := []storedOp{claimed(first), settled(publishing)}
	for name, c := range map[string]struct {
		ops  []storedOp
		with dedupstore.Settlement
		lost bool
		want dedupstore.State // of what is written; empty: nothing
	}{
		"no record":                 {nil, succeeds, true, ""},
		"finish":                    {[]storedOp{claimed(first)}, succeeds, false, dedupstore.Finished},
		"finish with messages":      {[]storedOp{claimed(first)}, publishing, false, dedupstore.Publishing},
		"finish, repeated":          {publish, publishing, false, ""},
		"release":                   {[]storedOp{claimed(first)}, dedupstore.Release{}, false, dedupstore.Retryable},
		"release after a finish":    {publish, dedupstore.Release{}, true, ""},
		"published":                 {publish, dedupstore.Published{Retention: time.Hour}, false, dedupstore.Finished},
		"published without outcome": {[]storedOp{claimed(first)}, dedupstore.Published{Retention: time.Hour}, true, ""},
		"published, repeated":       {[]storedOp{claimed(first), settled(succeeds)}, dedupstore.Published{}, false, ""},
		"what is no settlement":     {[]storedOp{claimed(first)}, nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := after(t, c.ops...)
			next, err := s.Settle(claimOf(s), c.with, epoch)
			if lost := errors.Is(err, dedupstore.ErrClaimLost); lost != c.lost || (next == nil) != (c.want == "") {
				t.Fatalf("got %v, %v", next, err)
			}
			if c.with == nil && err == nil {
				t.Error("it was taken")
			}
			if next != nil && next.State != c.want {
				t.Errorf("state is %s, want %s", next.State, c.want)
			}
			stranger := claimOf(s)
			stranger.Fence++
			if _, err := s.Settle(stranger, c.with, epoch); c.with != nil && !errors.Is(err, dedupstore.ErrClaimLost) {
				t.Errorf("another fence was answered %v", err)
			}
		})
	}
}

func TestStored_OperationsLeaveTheRecordAsItIs(t *testing.T) {
	t.Parallel()
	s := after(t, claimed(request("1")), settled(dedupstore.Release{Reason: "r"}))
	want := s
	want.Settled = append([]string{}, s.Settled...)
	other := request("1")
	other.Owner = "another-owner-token"
	next, a := s.Claim(other, epoch)
	if _, err := next.Settle(a.Claim, succeeds, epoch); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("the record is %+v, want %+v", s, want)
	}
}

func TestStored_ARecordWhoseTimeHasComeCountsAsNone(t *testing.T) {
	t.Parallel()
	s := after(t, claimed(request("1")))
	later := s.Expires
	if seen := s.Look(request("1").Key, later); seen.State != dedupstore.Absent {
		t.Errorf("it looks %s", seen.State)
	}
	extension := dedupstore.Extension{Claim: claimOf(s), Lease: time.Minute}
	if _, err := s.Extend(extension, later); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("extend was answered %v", err)
	}
	if _, err := s.Settle(claimOf(s), succeeds, later); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("settle was answered %v", err)
	}
	s.Fence = uint64(later.UnixMicro()) + 9 // the clock was set back
	next, a := s.Claim(request("1"), later)
	if a.Found != dedupstore.Absent || a.Claim.Attempt != 1 || next.Fence != s.Fence+1 || !next.First.Equal(later) {
		t.Errorf("answered %+v, fence %d after %d", a, next.Fence, s.Fence)
	}
	if s.Note(dedupstore.Duplicates{Count: 1}, later) != nil {
		t.Error("a duplicate was noted")
	}
}

func TestStored_ARepeatedReleaseWritesNothing(t *testing.T) {
	t.Parallel()
	s := after(t, claimed(request("1")))
	claim := claimOf(s)
	released, err := s.Settle(claim, dedupstore.Release{}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if next, err := released.Settle(claim, dedupstore.Release{}, epoch); next != nil || err != nil {
		t.Errorf("answered %v, writes %+v", err, next)
	}
}

func TestStored_WhatIsReleasedAtOnceIsDueByAnyClock(t *testing.T) {
	t.Parallel()
	s := after(t, claimed(request("1")), settled(dedupstore.Release{}))
	other := request("1")
	other.Owner = "another-owner-token"
	if _, a := s.Claim(other, epoch.Add(-time.Minute)); a.Status != dedupstore.AcquiredRun {
		t.Errorf("a clock that is behind was answered %s, wait %v", a.Status, a.Wait)
	}
}

func TestStored_RemembersTheLastOwners(t *testing.T) {
	t.Parallel()
	var ops []storedOp
	for i := range dedupstore.MaxSettled + 2 {
		r := request("1")
		r.Owner, r.MaxAttempts = "an-owner-token-number-"+strconv.Itoa(i), 100
		ops = append(ops, claimed(r), settled(dedupstore.Release{}))
	}
	s := after(t, ops...)
	if n := len(s.Settled); n != dedupstore.MaxSettled || !slices.IsSorted(s.Settled) || s.Settled[n-1][22:] != "5" {
		t.Errorf("it remembers %q", s.Settled)
	}
}

func TestStored_LooksAtWhatIsPublishedWithoutItsBytes(t *testing.T) {
	t.Parallel()
	finish := publishing
	finish.Outcome.Produced = []dedupstore.Produced{{ID: "out", Payload: []byte("secret")}}
	s := after(t, claimed(request("1")), settled(finish))
	seen := s.Look(request("1").Key, epoch)
	if produced := seen.Outcome.Produced; len(produced) != 1 || produced[0].ID != "out" || produced[0].Payload != nil {
		t.Errorf("it looks like %+v", produced)
	}
	if !seen.Until.Equal(s.Lease) || seen.Decided != s.Fence || s.Lease.IsZero() {
		t.Errorf("until %v, decided under %d; want %v, %d", seen.Until, seen.Decided, s.Lease, s.Fence)
	}
	if !seen.Ended.IsZero() {
		t.Errorf("a run that did not say how long it took ended %v", seen.Ended)
	}
}

func TestStored_ARerunLeavesOnlyTheReason(t *testing.T) {
	t.Parallel()
	finish := fails
	finish.Outcome.Reason, finish.Outcome.Result, finish.Outcome.Exhausted = "r", []byte("old"), true
	s := after(t, claimed(request("1")), settled(finish))
	next, err := s.Change(s.Look(request("1").Key, epoch), dedupstore.Rerun{}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if want := (dedupstore.Outcome{Reason: "r"}); !reflect.DeepEqual(next.Outcome, want) {
		t.Errorf("what runs again has %+v, want %+v", next.Outcome, want)
	}
}
