package sqlstore_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestRow_WhatCannotBeReadIsNotUsed(t *testing.T) {
	t.Parallel()
	const largest = math.MaxInt64
	for name, tc := range map[string]struct {
		state          dedupstore.State
		kind           dedupstore.Kind
		fence, decided uint64
		stubs          []byte
		bad            bool
	}{
		"running":                    {state: dedupstore.Running, fence: 1},
		"running with an outcome":    {state: dedupstore.Running, kind: "of a version to come", fence: 1},
		"retryable":                  {state: dedupstore.Retryable, fence: largest},
		"publishing":                 {state: dedupstore.Publishing, kind: dedupstore.Failed, fence: 1, decided: 1},
		"finished":                   {state: dedupstore.Finished, kind: dedupstore.Unknown, fence: 1, decided: largest},
		"succeeded":                  {state: dedupstore.Finished, kind: dedupstore.Succeeded, fence: 1, decided: 1},
		"finished without a kind":    {state: dedupstore.Finished, fence: 1, decided: 1, bad: true},
		"publishing of another kind": {state: dedupstore.Publishing, kind: "odd", fence: 1, decided: 1, bad: true},
		"another state":              {state: "odd", kind: dedupstore.Succeeded, fence: 1, bad: true},
		"absent":                     {state: dedupstore.Absent, fence: 1, bad: true},
		"without a fence":            {state: dedupstore.Running, bad: true},
		"a negative fence":           {state: dedupstore.Running, fence: largest + 1, bad: true},
		"a negative decision":        {state: dedupstore.Running, fence: 1, decided: math.MaxUint64, bad: true},
		"another encoding":           {state: dedupstore.Running, fence: 1, stubs: []byte{9}, bad: true},
	} {
		now := time.Now()
		r := sqlstore.Row{Key: "acme:billing:charge:1"}
		r.Expires = now.Add(1)
		r.State, r.Outcome.Kind, r.Fence, r.Decided = tc.state, tc.kind, tc.fence, tc.decided
		r.Read(tc.stubs, nil, now)
		bad, is := errors.AsType[*dedupstore.RecordError](r.Err)
		if is != tc.bad || r.Err != nil != tc.bad || is && bad.Key != r.Key {
			t.Errorf("%s: %v", name, r.Err)
		}
		r.Err = nil
		if r.Read(tc.stubs, nil, r.Expires); r.Err != nil {
			t.Errorf("%s: its time is over, and it is said to be unreadable: %v", name, r.Err)
		}
	}
}

func TestContents_AreKeptUntilTheyArePublished(t *testing.T) {
	t.Parallel()
	o := dedupstore.Outcome{Result: []byte("paid"), Produced: []dedupstore.Produced{{ID: "1", Payload: []byte("x")}}}
	if sqlstore.Contents(&dedupstore.Stored{State: dedupstore.Publishing, Outcome: o}) == nil {
		t.Error("the contents of what waits for its publish are gone")
	}
	if b := sqlstore.Contents(&dedupstore.Stored{State: dedupstore.Finished, Outcome: o}); b != nil {
		t.Errorf("contents are kept after the publish: %x", b)
	}
	if b := sqlstore.Contents(&dedupstore.Stored{State: dedupstore.Publishing}); b != nil {
		t.Errorf("without messages there are contents: %x", b)
	}
	if b := sqlstore.Result(o); string(b) != "paid" {
		t.Errorf("the result is %q", b)
	}
	if b := sqlstore.Result(dedupstore.Outcome{Result: []byte{}}); b != nil {
		t.Errorf("an empty result is %x, want none", b)
	}
}
