package natskv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

func TestStore_KeysAreThoseOfABucket(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newStore(t, js, Bucket("oncemill", 1))
	kv, err := js.KeyValue(t.Context(), "oncemill")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]dedupstore.Key{}
	for _, id := range []string{
		"a", ".", "a.b", "*", ">", "=", "=2E", "a b", "界", "a/b", "$", strings.Repeat("界", 170),
	} {
		for _, k := range []dedupstore.Key{
			{Tenant: id[:min(len(id), 3)], Group: "g", Handler: "h", ID: "1"},
			{Tenant: "t", Group: "g", Handler: "h", ID: id},
		} {
			subject := s.subject(k)
			if back, ok := s.key(subject); !ok || back != k {
				t.Errorf("%q is read as %+v, %v", subject, back, ok)
			}
			if other, taken := seen[subject]; taken && other != k {
				t.Errorf("%+v and %+v share %q", k, other, subject)
			}
			if _, known := seen[subject]; known {
				continue
			}
			seen[subject] = k
			r := request("1")
			r.Key = k
			if k.Validate() != nil {
				t.Fatalf("%+v is no key", k)
			}
			claim(t, s, r, dedupstore.AcquiredRun)
			if _, err := kv.Get(t.Context(), strings.TrimPrefix(subject, "$KV.oncemill.")); err != nil {
				t.Errorf("the bucket gives for %q: %v", subject, err)
			}
		}
	}
	for _, foreign := range []string{
		"$KV.oncemill.a", "$KV.oncemill.a.b.c.=", "$KV.oncemill.a.b.c.=zz", "$KV.oncemill.a.b.c.=61",
		"$KV.oncemill.a.b..d",
	} {
		if k, ok := s.key(foreign); ok {
			t.Errorf("%q is taken for %+v", foreign, k)
		}
	}
}

func TestStore_EachWriteKeepsATTL(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newStore(t, js, Bucket("oncemill", 1))
	stream, err := js.Stream(t.Context(), "KV_oncemill")
	if err != nil {
		t.Fatal(err)
	}
	want := func(after string, least time.Duration) {
		t.Helper()
		m, err := stream.GetLastMsgForSubject(t.Context(), s.subject(key("1")))
		if err != nil {
			t.Fatal(err)
		}
		ttl, err := time.ParseDuration(m.Header.Get(jetstream.MsgTTLHeader))
		if err != nil || ttl < least || ttl > least+5*time.Second {
			t.Errorf("after %s the TTL is %v, %v; want %v and some seconds", after, ttl, err, least)
		}
	}
	r := request("1")
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	want("a claim", r.Lease+r.Retention)
	x := dedupstore.Extension{Claim: c, Lease: 2 * time.Minute}
	if err := dedupstore.ExtendOne(t.Context(), s, x); err != nil {
		t.Fatal(err)
	}
	want("an extension", x.Lease+r.Retention)
	settle(t, s, c, succeeded(""))
	want("a finish", time.Hour)
	d := dedupstore.Duplicates{Key: key("1"), Count: 2, Last: time.Now(), Retention: time.Minute}
	if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{d}); err != nil {
		t.Fatal(err)
	}
	want("a duplicate", time.Hour)
}

// A bucket that was made as one has markers where the time of keys has come.
func TestStore_TheServerRemovesARecordWhoseTimeHasCome(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "marks", LimitMarkerTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for bucket, s := range map[string]*Store{
		"oncemill": newStore(t, js, Bucket("oncemill", 1)), "marks": storeOf(t, js, "marks"),
	} {
		t.Run(bucket, func(t *testing.T) {
			t.Parallel()
			r := request("1")
			r.Lease, r.Retention = time.Millisecond, time.Millisecond
			claim(t, s, r, dedupstore.AcquiredRun)
			natstest.Ask(t, "an empty bucket", func(ctx context.Context) (struct{}, error) {
				stream, err := js.Stream(ctx, "KV_"+bucket)
				if err != nil {
					return struct{}{}, err
				}
				m, err := stream.GetLastMsgForSubject(ctx, s.subject(key("1")))
				if err == nil && m.Header.Get(jetstream.MarkerReasonHeader) == "" {
					return struct{}{}, errors.New("the record is there")
				}
				return struct{}{}, nil
			})
			if page, err := s.List(t.Context(), dedupstore.Filter{}, ""); err != nil || len(page.Records) > 0 {
				t.Errorf("the list has %+v, %v", page, err)
			}
			a := claim(t, s, request("1"), dedupstore.AcquiredRun)
			if a.Found != dedupstore.Absent {
				t.Errorf("found %s", a.Found)
			}
			settle(t, s, a.Claim, succeeded(""))
		})
	}
}

func TestStore_OtherVersionsAreLeftAlone(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newStore(t, js, Bucket("oncemill", 1))
	subject := s.subject(key("1"))
	if _, err := js.Publish(t.Context(), subject, []byte("\x02newer")); err != nil {
		t.Fatal(err)
	}
	settle(t, s, claim(t, s, request("2"), dedupstore.AcquiredRun).Claim, succeeded(""))
	wanted := func(err error) {
		t.Helper()
		var record *dedupstore.RecordError
		if !errors.As(err, &record) || record.Key != key("1").String() || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("got %v", err)
		}
	}
	_, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
	wanted(err)
	r := request("1")
	c := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Lease: time.Minute, Retention: time.Minute}
	wanted(dedupstore.SettleOne(t.Context(), s, c, succeeded("")))
	_, err = s.Look(t.Context(), []dedupstore.Key{key("1")})
	wanted(err)
	page, err := s.List(t.Context(), dedupstore.Filter{}, "")
	wanted(err)
	if len(page.Records) != 1 || page.Records[0].Key.ID != "2" {
		t.Errorf("the list has %+v", page.Records)
	}
	rev, err := s.js.KeyValue(t.Context(), "oncemill")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := rev.Get(t.Context(), strings.TrimPrefix(subject, "$KV.oncemill.")); err != nil || e.Revision() != 1 {
		t.Errorf("the record was touched: %v, %v", e, err)
	}
}

func TestStore_AKeyThatPeopleDeletedIsNew(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newStore(t, js, Bucket("oncemill", 1))
	old := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	kv, err := js.KeyValue(t.Context(), "oncemill")
	if err == nil {
		err = kv.Delete(t.Context(), strings.TrimPrefix(s.subject(key("1")), "$KV.oncemill."))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := dedupstore.SettleOne(t.Context(), s, old, succeeded("")); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("the old claim was settled: %v", err)
	}
	a := claim(t, s, request("1"), dedupstore.AcquiredRun)
	if a.Found != dedupstore.Absent || a.Claim.Fence <= old.Fence {
		t.Errorf("answered %+v after fence %d", a, old.Fence)
	}
}

func TestStore_WhatHasNoRoomIsRefused(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	bucket := Bucket("oncemill", 1)
	bucket.MaxBytes = 1 << 20
	s := newStore(t, js, bucket)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	for _, size := range []int{2 << 20, 1<<20 - 300} { // over max_payload, and over what is left
		err := dedupstore.SettleOne(t.Context(), s, c, succeeded(strings.Repeat("x", size)))
		if !errors.Is(err, dedupstore.ErrFull) {
			t.Errorf("an outcome of %d bytes: %v, want ErrFull", size, err)
		}
	}
	settle(t, s, c, succeeded(strings.Repeat("x", 900_000)))
	var err error
	for i := 0; err == nil && i < 2000; i++ {
		_, err = dedupstore.ClaimOne(t.Context(), s, request(fmt.Sprint("new-", i)))
	}
	if !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("a full bucket answers %v, want ErrFull", err)
	}
	claim(t, s, request("1"), dedupstore.Done)
}

func TestStore_ManyChangesOfOneRecord(t *testing.T) {
	t.Parallel()
	s := newStore(t, natstest.Start(t).JetStream(), Bucket("oncemill", 1))
	claimtest.ManyChanges(t, s, 32)
}

func TestStore_ListsByPages(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newStore(t, js, Bucket("oncemill", 1))
	const records = pageSize + 300
	var requests []dedupstore.Request
	for i := range records {
		requests = append(requests, request(fmt.Sprint(i)))
	}
	for some := range slices.Chunk(requests, 256) { // as engines do
		for _, r := range s.Claim(t.Context(), some) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	other := request("other")
	other.Key.Handler = "refund"
	claim(t, s, other, dedupstore.AcquiredRun)
	pages, seen := 0, map[string]bool{}
	for after := ""; pages == 0 || after != ""; pages++ {
		page, err := s.List(t.Context(), dedupstore.Filter{Handler: "charge"}, after)
		if err != nil || page.Looked > pageSize {
			t.Fatalf("page %d: %d records, %v", pages, page.Looked, err)
		}
		if page.Total != records {
			t.Errorf("there are %d in all, want %d", page.Total, records)
		}
		for _, r := range page.Records {
			seen[r.Key.ID] = true
		}
		after = page.Next
	}
	if pages != 2 || len(seen) != records || seen["other"] {
		t.Errorf("%d pages have %d records, want 2 and %d", pages, len(seen), records)
	}
	var invalid *dedupstore.InvalidError
	if _, err := s.List(t.Context(), dedupstore.Filter{}, "x"); !errors.As(err, &invalid) {
		t.Errorf("a page after nothing: %v", err)
	}
}

func TestStore_WorksInADomain(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t, func(o *server.Options) { o.JetStreamDomain = "hub" }).Connect()
	js, err := jetstream.NewWithDomain(nc, "hub")
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, js, Bucket("oncemill", 1))
	settle(t, s, claim(t, s, request("1"), dedupstore.AcquiredRun).Claim, succeeded("x"))
	if a := claim(t, s, request("1"), dedupstore.Done); string(a.Outcome.Result) != "x" {
		t.Errorf("the result is %q", a.Outcome.Result)
	}
	if _, err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClock_ASlowAnswerWidensNothing(t *testing.T) {
	t.Parallel()
	var c clock
	at, ahead := time.Now(), time.Minute // of the server
	c.learn(at.Add(ahead), at, at.Add(time.Millisecond))
	sent := at.Add(100 * time.Millisecond)
	c.learn(sent.Add(ahead), sent, sent.Add(time.Second))
	if last := c.last.Load(); last.wide > 120*time.Millisecond {
		t.Errorf("the bounds are %v apart", last.wide)
	}
	for _, jump := range []time.Duration{-time.Hour, time.Hour} { // another server leads
		ahead += jump
		c.learn(sent.Add(ahead), sent, sent.Add(time.Second))
		now, _ := c.last.Load().at(sent.Add(time.Second))
		if early := now.Early.Sub(sent.Add(ahead)); early < -time.Microsecond || early > time.Second {
			t.Errorf("after %v it is %v later", jump, early)
		}
	}
}

func TestClock_BoundsTheServersTime(t *testing.T) {
	t.Parallel()
	came := time.Now()
	s := &sample{time: came.Add(rand.N(time.Hour)), came: came, wide: 3 * time.Millisecond}
	for _, age := range []time.Duration{0, time.Millisecond, maxSampleAge} {
		at, _ := s.at(came.Add(age))
		early, late := at.Early.Sub(s.time), at.Late.Sub(s.time)
		if early > age || age > late || late-early > 2*age/maxDrift+s.wide+time.Microsecond {
			t.Errorf("after %v it is %v to %v", age, early, late)
		}
	}
}
