package recordstore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var now = time.UnixMicro(1_800_000_000_000_000)

// full is a record with something in each field.
func full() dedupstore.Stored {
	past := dedupstore.Attempt{Claimed: now.Add(-time.Hour), Ended: now, Holder: "h", Reason: "declined"}
	return dedupstore.Stored{
		State: dedupstore.Publishing, Owner: "owner-token-of-16", Fence: uint64(now.UnixMicro()), Attempts: 2,
		Returned: 3, Reruns: 4, Crashes: 5, Started: true, Lease: now.Add(time.Minute), Due: now.Add(time.Second),
		Expires: now.Add(time.Hour), Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: "abc"},
		Settled: []string{"a", "b"}, Trace: "00-trace", Decided: uint64(now.UnixMicro()) - 7,
		Outcome: dedupstore.Outcome{
			Kind: dedupstore.Failed, Exhausted: true, Truncated: true, Reason: "spent", Result: []byte{0, 1, 255},
			Produced: []dedupstore.Produced{
				{ID: "1", Topic: "t", Key: "k", Header: map[string]string{"a": "1", "\xff": ""}, Payload: []byte{}},
				{ID: "2"},
			},
		},
		First: now.Add(-24 * time.Hour), Claimed: now, Ended: now.Add(time.Millisecond), Holder: "host:1",
		History: []dedupstore.Attempt{past, {}}, Duplicates: 9, LastDuplicate: now.Add(time.Hour),
	}
}

func TestCodec_GivesBackEachField(t *testing.T) {
	t.Parallel()
	want := full()
	for v, i := reflect.ValueOf(want), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves out %s", v.Type().Field(i).Name)
		}
	}
	for _, want := range []dedupstore.Stored{want, {State: dedupstore.Running, Fence: 1}} {
		if got, err := Decode(Encode(&want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestCodec_EndsNothingEarly(t *testing.T) {
	t.Parallel()
	s := full()
	s.Lease = now.Add(1)
	if got, err := Decode(Encode(&s)); err != nil || !got.Lease.Equal(now.Add(time.Microsecond)) {
		t.Errorf("the lease ends at %v, %v", got.Lease, err)
	}
}

func TestCodec_IsCompact(t *testing.T) {
	t.Parallel()
	s := dedupstore.Stored{
		State: dedupstore.Finished, Owner: strings.Repeat("o", 22), Settled: []string{strings.Repeat("o", 22)},
		Fence: uint64(now.UnixMicro()), Attempts: 1, Expires: now.Add(24 * time.Hour), First: now, Claimed: now,
		Ended: now, Holder: "host-12345:678", Decided: uint64(now.UnixMicro()), Trace: strings.Repeat("t", 55),
		Outcome:     dedupstore.Outcome{Kind: dedupstore.Succeeded},
		Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: strings.Repeat("s", 43)},
	}
	if n := len(Encode(&s)); n > 220 {
		t.Errorf("a usual record takes %d bytes", n)
	}
}

func TestCodec_RefusesWhatItDidNotWrite(t *testing.T) {
	t.Parallel()
	s := full()
	good := Encode(&s)
	newer := slices.Clone(good)
	newer[0] = version + 1
	for want, b := range map[string][]byte{
		"is empty":        nil,
		"is of version 2": newer,
		"version 123":     []byte(`{"json": true}`),
		"damaged":         append(slices.Clone(good), 0),
	} {
		if _, err := Decode(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", b, err, want)
		}
	}
	for n := range good {
		if _, err := Decode(good[:n]); err == nil {
			t.Errorf("a record of which %d of %d bytes are left was read", n, len(good))
		}
	}
}

func FuzzDecode(f *testing.F) {
	s := full()
	f.Add(Encode(&s))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := Decode(b); err == nil {
			Encode(&got)
		}
	})
}

func request(id, owner string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "t", Group: "g", Handler: "h", ID: id},
		Owner: "owner-token-of-" + owner, Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
	}
}

func TestClaim_ALeaseIsNeverShorterThanAsked(t *testing.T) {
	t.Parallel()
	const slack = 50 * time.Millisecond
	at := Time{now, now.Add(slack)}
	var written *dedupstore.Stored
	r := request("1", "1")
	got := Claim(t.Context(), []dedupstore.Request{r}, nil, func(_ context.Context, w *Work) error {
		written = w.Apply(dedupstore.Stored{}, at)
		return nil
	})
	if want := at.Late.Add(r.Lease); !written.Lease.Equal(want) || !written.Expires.Equal(want.Add(r.Retention)) {
		t.Errorf("the lease ends at %v, the record at %v; want %v and an hour more",
			written.Lease, written.Expires, want)
	}
	if c := got[0].Answer.Claim; c.Lease != r.Lease || c.Fence != uint64(now.UnixMicro()) {
		t.Errorf("the claim is %+v", c)
	}
	c := got[0].Answer.Claim
	for name, s := range map[string]dedupstore.Settlement{
		"finish":  dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: c.Retention},
		"release": dedupstore.Release{},
		"publishing": dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Withheld: true, Retention: c.Retention},
	} {
		var next *dedupstore.Stored
		settlings := []dedupstore.Settling{{Claim: c, Settlement: s}}
		errs := Settle(t.Context(), settlings, func(_ context.Context, w *Work) error {
			next = w.Apply(*written, at)
			return nil
		})
		if want := at.Late.Add(r.Retention); errs[0] != nil || next.Expires.Before(want) {
			t.Errorf("%s: %v, the record ends at %v, want %v or later", name, errs[0], next.Expires, want)
		}
	}
}

func TestClaim_KeysAreDoneSideBySideAndOperationsOfOneInOrder(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	invalid := request("9", "9")
	invalid.MaxAttempts = 0
	requests := []dedupstore.Request{
		request("1", "1"), request("2", "1"), invalid, request("1", "2"), request("3", "1"), request("2", "2"),
	}
	meet := make(chan struct{})
	results := Claim(t.Context(), requests, nil, func(_ context.Context, w *Work) error {
		if w.Key.ID == "3" {
			<-meet
			return down
		}
		w.Apply(dedupstore.Stored{}, Time{now, now})
		if w.Key.ID == "1" {
			close(meet)
		}
		return nil
	})
	for i, want := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredRun, "", dedupstore.Busy, "", dedupstore.Busy,
	} {
		if got := results[i]; got.Answer.Status != want || (got.Err != nil) != (want == "") {
			t.Errorf("%d: %s, %v; want %q", i, got.Answer.Status, got.Err, want)
		}
	}
	if !errors.Is(results[4].Err, down) {
		t.Errorf("the error is %v", results[4].Err)
	}
}

func TestClaim_NothingIsDoneForAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	requests := []dedupstore.Request{request("1", "1"), request("2", "1")}
	results := Claim(ctx, requests, nil, func(context.Context, *Work) error {
		t.Error("a work was done")
		return nil
	})
	for _, r := range results {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("the error is %v", r.Err)
		}
	}
}
