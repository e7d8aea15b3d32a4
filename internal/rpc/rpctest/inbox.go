package rpctest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
)

func (s suite) inbox(t *testing.T) {
	box := keytest.NewInbox(t)
	var before atomic.Int32
	rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}), Settings{},
		func(ctx context.Context, _, value string) (string, error) {
			keytest.Write(ctx, value)
			before.Store(int32(len(box.Rows())))
			return "paid", nil
		})
	want(t, rg.pay("k"), ok, false)
	want(t, rg.pay("k"), ok, true)
	if rows := box.Rows(); before.Load() != 0 || !slices.Equal(rows, []string{"100"}) {
		t.Errorf("%d rows before the commit, %q after two calls", before.Load(), rows)
	}
}

func (s suite) inboxErrors(t *testing.T) {
	for code := uint32(1); code <= 16; code++ {
		for _, release := range []bool{false, true} {
			box, l := keytest.NewInbox(t), &keytest.Ledger{}
			rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}),
				Settings{Release: func(uint32) bool { return release }},
				func(ctx context.Context, _, _ string) (string, error) {
					keytest.Write(ctx, "row")
					if l.Add("") == 1 {
						return "", s.Error(code, "no")
					}
					return "paid", nil
				})
			want(t, rg.pay("k"), code, false)
			if n := len(box.Rows()); n != 0 {
				t.Errorf("code %d, released %v: %d rows", code, release, n)
			}
			if !release {
				want(t, rg.pay("k"), code, true)
				keytest.WantRuns(t, l, 1)
				continue
			}
			want(t, rg.pay("k"), ok, false)
			if n := len(box.Rows()); n != 1 {
				t.Errorf("code %d: %d rows of the run that counts", code, n)
			}
		}
	}
}

func (s suite) inboxAgain(t *testing.T) {
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	box.Again = 2
	rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{}), Settings{},
		func(ctx context.Context, _, value string) (string, error) {
			n := l.Add("")
			keytest.Write(ctx, value)
			s.Add(ctx, "location", fmt.Sprint("/payments/", n))
			s.AddTrailer(ctx, "etag", strconv.Itoa(n))
			return strconv.Itoa(n), nil
		})
	for _, replayed := range []bool{false, true} {
		a := rg.pay("k")
		want(t, a, ok, replayed)
		if a.Value != "3" || !slices.Equal(a.Metadata["location"], []string{"/payments/3"}) ||
			!slices.Equal(a.Metadata["etag"], []string{"3"}) || len(box.Rows()) != 1 {
			t.Errorf("%q %v, %d rows", a.Value, a.Metadata, len(box.Rows()))
		}
	}
}

func (s suite) inboxTooLarge(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, strings.Repeat("x", 1<<11))} {
		box, l := keytest.NewInbox(t), &keytest.Ledger{}
		rg := s.serve(t, keytest.NewGuard(t, box, oncemill.Policy{MaxResultBytes: 1 << 10}), Settings{},
			func(ctx context.Context, _, _ string) (string, error) {
				l.Add("")
				keytest.Write(ctx, "row")
				s.Add(ctx, "location", "/payments/1")
				return strings.Repeat("x", 1<<11), err
			})
		for _, replayed := range []bool{false, true} {
			a := rg.pay("k")
			wantRefusal(t, a, internal, "RESPONSE_REFUSED")
			if a.replayed() != replayed || len(a.Metadata["location"]) != 0 || len(box.Rows()) != 0 {
				t.Errorf("replayed %v, %v, %d rows", a.replayed(), a.Metadata, len(box.Rows()))
			}
		}
		keytest.WantRuns(t, l, 1)
	}
}

func (s suite) inboxFaults(t *testing.T) {
	serve := func(box *keytest.Inbox, l *keytest.Ledger, err error) *Rig {
		policy := oncemill.Policy{MaxAttempts: 2, Lease: 100 * time.Millisecond}
		policy.Backoff = oncemill.Backoff{Min: 1, Max: 1}
		return s.serve(t, keytest.NewGuard(t, box, policy), Settings{}, answering(l, err))
	}
	l, box := &keytest.Ledger{}, keytest.NewInbox(t)
	box.Undecided = errDown
	wantRefusal(t, serve(box, l, nil).pay("k"), unavailable, "UNAVAILABLE")

	l, box = &keytest.Ledger{}, keytest.NewInbox(t)
	box.Broken, box.Unsettled = errDown, errDown
	wantRefusal(t, serve(box, l, nil).pay("k"), unavailable, "UNAVAILABLE")

	l, box = &keytest.Ledger{}, keytest.NewInbox(t)
	box.Broken = errDown
	rg := serve(box, l, nil)
	for i := range 3 {
		a := rg.pay("k")
		wantRefusal(t, a, internal, "NOT_COMMITTED")
		if a.again() != (i == 0) || a.replayed() != (i == 2) {
			t.Errorf("call %d: RetryInfo %v, replayed %v", i, a.again(), a.replayed())
		}
	}
	keytest.WantRuns(t, l, 2)

	for _, err := range []error{nil, errNoLuck, s.Error(notFound, "no"), oncemill.Permanent(errNoLuck)} {
		l, box = &keytest.Ledger{}, keytest.NewInbox(t)
		box.Conflict = true
		wantRefusal(t, serve(box, l, err).pay("k"), unavailable, "UNAVAILABLE")
		keytest.WantRuns(t, l, 1)
	}
}
