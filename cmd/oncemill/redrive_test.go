package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

// A redriveRig has three dead letters in memory, of a handler that succeeds from now on.
type redriveRig struct {
	*testing.T
	store   *dedupstore.Memory
	letters *consumertest.Letters
	refuses string // the ID of a message that the broker does not take
}

func newRedriveRig(t *testing.T) *redriveRig {
	r := &redriveRig{T: t, store: consumertest.NewStore(t), letters: &consumertest.Letters{}}
	r.letters.To = r
	for i := range 3 {
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint("order-", i)}
		a, err := dedupstore.ClaimOne(t.Context(), r.store, dedupstore.Request{
			Key: key, Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		})
		r.must(err)
		r.must(dedupstore.SettleOne(t.Context(), r.store, a.Claim, dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "refused"}, Retention: time.Hour,
		}))
		r.letters.Add(consumertest.DeadLetter(key, r.record(i).Fence, "refused"))
	}
	return r
}

func (r *redriveRig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *redriveRig) record(i int) dedupstore.Record {
	r.Helper()
	all, err := r.store.Look(r.Context(), []dedupstore.Key{
		{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint("order-", i)},
	})
	r.must(err)
	return all[0]
}

// Publish implements [producer.Publisher].
func (r *redriveRig) Publish(ctx context.Context, all ...producer.Message) error {
	var refused []producer.Failure
	for i, m := range all {
		if m.ID == r.refuses {
			refused = append(refused, producer.Failure{Index: i, ID: m.ID, Err: errors.New("too large")})
		} else if err := (&consumertest.Reruns{Store: r.store}).Publish(ctx, m); err != nil {
			return err
		}
	}
	if len(refused) > 0 {
		return &producer.PublishError{Failures: refused}
	}
	return nil
}

// forgets drops the record of a message.
func (r *redriveRig) forgets(i int) {
	r.Helper()
	r.must(r.store.Change(r.Context(), r.record(i), dedupstore.Forget{}))
}

// runs has somebody else redrive a letter.
func (r *redriveRig) runs(i int) {
	r.Helper()
	m, err := consumer.Rerun(r.letters.All()[i].Message)
	r.must(err)
	r.must(r.Publish(r.Context(), m))
}

// A yes is somebody who confirms, and before that something happens.
type yes func()

func (before yes) Read(b []byte) (int, error) {
	before()
	return copy(b, "yes\n"), nil
}

// What was predicted and not sent is an error, unless it needs that no more.
func TestRedrive_WhatIsNotSentIsAnError(t *testing.T) {
	t.Parallel()
	run := func(r *redriveRig) { r.runs(0) }
	forget := func(r *redriveRig) { r.forgets(0) }
	for name, c := range map[string]struct {
		before, meanwhile func(r *redriveRig)
		redriven          string
		err               string // empty: none
	}{
		"all are sent":         {nil, nil, "3 letters redriven, 0 left", ""},
		"one has run before":   {run, nil, "2 letters redriven, 1 left", ""},
		"one runs meanwhile":   {nil, run, "2 letters redriven, 1 left", ""},
		"one has no record":    {forget, nil, "2 letters redriven, 1 left", ""},
		"one loses its record": {nil, forget, "2 letters redriven, 1 left", "1 of 3 letters not redriven"},
		"the broker refuses one": {nil, func(r *redriveRig) {
			r.refuses = "order-1"
		}, "2 letters redriven, 0 left, 1 refused", "1 of 3 letters not redriven: the broker refused 1"},
		"one is gone": {nil, func(r *redriveRig) {
			r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter { return slices.Delete(all, 0, 1) })
		}, "2 letters redriven, 0 left", "1 are gone"},
		"nothing is sent": {nil, func(r *redriveRig) {
			for i := range 3 {
				r.forgets(i)
			}
		}, "0 letters redriven, 3 left", "3 of 3 letters not redriven"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := newRedriveRig(t)
			happens := func(what func(*redriveRig)) {
				if what != nil {
					what(rig)
				}
			}
			happens(c.before)
			var out, log strings.Builder
			confirms := yes(func() { happens(c.meanwhile) })
			a := &app{in: confirms, out: &out, log: &log, settings: settings{output: "table"}}
			r := &redriving{consent: consent{verb: "redrive", rate: 10_000}, topic: "dead"}
			r.does.Source, r.does.Store = rig.letters, rig.store
			err := a.redrives(t.Context(), r)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
				!strings.Contains(log.String(), c.redriven) {
				t.Errorf("%v\n%s", err, log.String())
			}
		})
	}
}

// Topics whose long names begin alike are counted, each.
func TestRedrive_ConsentNamesAllLetters(t *testing.T) {
	t.Parallel()
	rig := newRedriveRig(t)
	rig.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
		for i := range all {
			all[i].Header["oncemill-topic"] = strings.Repeat("t", 400) + fmt.Sprint(i)
		}
		return all
	})
	var log strings.Builder
	a := &app{in: yes(func() {}), out: io.Discard, log: &log, settings: settings{output: "table"}}
	r := &redriving{consent: consent{verb: "redrive", rate: 10_000}, topic: "dead"}
	r.does.Source, r.does.Store = rig.letters, rig.store
	if err := a.redrives(t.Context(), r); err != nil || !strings.Contains(log.String(), `"yes" to redrive 3 letters`) {
		t.Errorf("%v\n%s", err, log.String())
	}
}
