package redisstore

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { rdb.Close(); ring.Close() })
	for name, test := range map[string]struct {
		rdb    redis.UniversalClient
		config Config
		want   string
	}{
		"nil":                 {nil, Config{}, "rdb is nil"},
		"nil client":          {(*redis.Client)(nil), Config{}, "rdb is nil"},
		"nil cluster":         {(*redis.ClusterClient)(nil), Config{}, "rdb is nil"},
		"ring":                {ring, Config{}, "rdb is a *redis.Ring"},
		"braces":              {rdb, Config{Prefix: "a{b}"}, `Config.Prefix is "a{b}"`},
		"control character":   {rdb, Config{Prefix: "a\n"}, `Config.Prefix is "a\n"`},
		"not UTF-8":           {rdb, Config{Prefix: "\xff"}, `Config.Prefix is "\xff"`},
		"longer than allowed": {rdb, Config{Prefix: strings.Repeat("p", 129)}, "want at most 128 bytes"},
	} {
		_, err := New(test.rdb, test.config)
		var invalid *dedupstore.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, test.want)
		}
	}
	if s, err := New(rdb, Config{}); err != nil || s.name(key("1")) != "oncemill:acme:billing:charge:1" {
		t.Errorf("the zero config: %v, %v", s, err)
	}
}

func TestStore_RefusesBadArgumentsBeforeItSends(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens
	t.Cleanup(func() { rdb.Close() })
	s := must(New(rdb, Config{}))(t)
	c := dedupstore.Claim{Key: key("1"), Owner: ids.Token(), Fence: 1, Lease: time.Second, Retention: time.Second}
	bad := request("1")
	bad.Lease = 0
	_, err := dedupstore.ClaimOne(t.Context(), s, bad)
	for what, err := range map[string]error{
		"claim":      err,
		"extend":     dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: 0, Started: true}),
		"settlement": dedupstore.SettleOne(t.Context(), s, c, nil),
		"finish":     dedupstore.SettleOne(t.Context(), s, c, dedupstore.Finish{}),
		"owner":      dedupstore.SettleOne(t.Context(), s, dedupstore.Claim{}, dedupstore.Release{}),
	} {
		var invalid *dedupstore.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: error is %v, want an InvalidError", what, err)
		}
	}
}

func TestStore_FiveHundredClaimersOneRun(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	var mu sync.Mutex
	answers := map[dedupstore.Status]int{}
	var group sync.WaitGroup
	start := make(chan struct{})
	for range 500 {
		group.Go(func() {
			<-start
			a, err := dedupstore.ClaimOne(t.Context(), s, request("one"))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			answers[a.Status]++
			mu.Unlock()
		})
	}
	close(start)
	group.Wait()
	want := map[dedupstore.Status]int{dedupstore.AcquiredRun: 1, dedupstore.Busy: 499}
	if diff := cmp.Diff(want, answers); diff != "" {
		t.Error(diff)
	}
}

func TestStore_ResultsOfAllSizesAreReplayed(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	for name, result := range map[string][]byte{
		"nothing": nil, "64 KiB": bytes.Repeat([]byte{0xff, 0}, 32<<10), "10 MB": bytes.Repeat([]byte{0, '\n'}, 5_000_000),
	} {
		r := request(name)
		a := claim(t, s, r, dedupstore.AcquiredRun)
		finish := producing(dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: result, Truncated: true},
			dedupstore.Produced{ID: "out", Payload: result})
		settle(t, s, a.Claim, finish)
		if again := claim(t, s, r, dedupstore.AcquiredPublish); !reflect.DeepEqual(again.Outcome, finish.Outcome) {
			t.Errorf("%s: the outcome to publish differs", name)
		}
		settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour})
		finish.Outcome.Produced[0].Payload = nil
		if done := claim(t, s, request(name), dedupstore.Done); !reflect.DeepEqual(done.Outcome, finish.Outcome) {
			t.Errorf("%s: the outcome of a duplicate differs", name)
		}
	}
}

func TestStore_ProducedMessagesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	produced := []dedupstore.Produced{
		{ID: "1", Topic: "orders", Key: "k", Header: map[string]string{"a": "b", "<&>": "\u2028"}, Payload: []byte(`{"x":1}`)},
		{ID: "2", Topic: "\xff", Key: "\x00\xfe", Header: map[string]string{"\xfd": "\xfc", "e": ""}, Payload: []byte{0xff}},
		{ID: "3"},
	}
	r := request("bytes")
	a := claim(t, s, r, dedupstore.AcquiredRun)
	settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "why\u2028"}, produced...))
	got := claim(t, s, r, dedupstore.AcquiredPublish).Outcome
	if diff := cmp.Diff(dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "why\u2028", Produced: produced}, got); diff != "" {
		t.Error(diff)
	}
	settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour})
	if diff := cmp.Diff(dedupstore.Stubs(produced), claim(t, s, r, dedupstore.Done).Outcome.Produced); diff != "" {
		t.Error(diff)
	}
}

func TestStore_FencesAreWholeMicroseconds(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	before := must(rdb.Time(t.Context()).Result())(t).UnixMicro()
	r := request("fence")
	a := claim(t, s, r, dedupstore.AcquiredRun)
	after := must(rdb.Time(t.Context()).Result())(t).UnixMicro()
	if f := int64(a.Claim.Fence); f < before || f > after {
		t.Errorf("fence is %d, want %d to %d", f, before, after)
	}
	// A fence that runs ahead of the clock grows by one and keeps every digit.
	const ahead = 8_999_999_999_999_998
	edit(t, s, rdb, r.Key, func(rec *record) { rec.fence = ahead })
	expire(t, s, rdb, r.Key)
	if a = claim(t, s, request("fence"), dedupstore.AcquiredRun); a.Claim.Fence != ahead+1 {
		t.Errorf("after fence %d came %d", uint64(ahead), a.Claim.Fence)
	}
}

func TestStore_OwnerOfALostRecordIsRefused(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	former := claim(t, s, request("lost"), dedupstore.AcquiredRun).Claim
	if err := rdb.Del(t.Context(), s.name(key("lost"))).Err(); err != nil {
		t.Fatal(err)
	}
	a := claim(t, s, request("lost"), dedupstore.AcquiredRun)
	if a.Claim.Fence <= former.Fence || a.Found != dedupstore.Absent {
		t.Errorf("after fence %d came %+v", former.Fence, a)
	}
	for what, err := range map[string]error{
		"finish": dedupstore.SettleOne(t.Context(), s, former, succeeded("z")), "extend": dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: former, Lease: time.Minute, Started: true}),
		"release": dedupstore.SettleOne(t.Context(), s, former, dedupstore.Release{}),
	} {
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: error is %v, want ErrClaimLost", what, err)
		}
	}
	settle(t, s, a.Claim, succeeded("ok"))
}

// As many as Memory and the model remember: histories that differ in this are not linearizable.
func TestStore_LastFourOwnersThatSettledAreRemembered(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	requests := make([]dedupstore.Request, 5)
	for i := range requests {
		requests[i] = request("settled")
		requests[i].MaxAttempts = 10
		settle(t, s, claim(t, s, requests[i], dedupstore.AcquiredRun).Claim, dedupstore.Release{})
	}
	for _, r := range requests[1:] {
		claim(t, s, r, dedupstore.Busy)
	}
	claim(t, s, requests[0], dedupstore.AcquiredRun)
}

func TestStore_DurationsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{0: 0, time.Millisecond: 1, time.Millisecond + 1: 2, 1999 * time.Microsecond: 2, time.Second: 1000} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v became %d ms, want %d", d, got, want)
		}
	}
}

func TestStore_EndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := request("ended")
	if _, err := dedupstore.ClaimOne(ctx, s, r); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	if n := rdb.Exists(t.Context(), s.name(r.Key)).Val(); n != 0 {
		t.Error("there is a record")
	}
}

func TestStore_WorksAfterScriptFlush(t *testing.T) {
	t.Parallel()
	rdb := ownServer(t).Client()
	s := newStore(t, rdb)
	flush := func() {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := request("flush")
	flush()
	a := claim(t, s, r, dedupstore.AcquiredRun)
	flush()
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a.Claim, Lease: time.Minute, Started: true}); err != nil {
		t.Error(err)
	}
	flush()
	settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Succeeded}, dedupstore.Produced{ID: "1"}))
	flush()
	settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour})
	flush()
	claim(t, s, r, dedupstore.Done)
}
