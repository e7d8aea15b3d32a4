package rpctest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
)

var errDown = errors.New("the store is down")

func (s suite) storeDown(t *testing.T) {
	l := &keytest.Ledger{}
	g := keytest.NewGuard(t, keytest.Broken{Store: keytest.NewMemory(t), Claiming: errDown}, oncemill.Policy{})
	rg := s.serve(t, g, Settings{}, charging(l))
	a := rg.pay("k")
	wantRefusal(t, a, unavailable, "UNAVAILABLE")
	if !a.again() {
		t.Error("no RetryInfo")
	}
	keytest.WantRuns(t, l, 0)
}

func (s suite) claimLost(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "no")} {
		store := keytest.Broken{Store: keytest.NewMemory(t), Settling: dedupstore.ErrClaimLost}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), Settings{}, answering(&keytest.Ledger{}, err))
		wantRefusal(t, rg.pay("k"), aborted, "IN_PROGRESS")
	}
}

func (s suite) unrecorded(t *testing.T) {
	for code, err := range map[uint32]error{ok: nil, unavailable: s.Error(unavailable, "no")} {
		store := keytest.Broken{Store: keytest.NewMemory(t), Settling: errDown}
		g := keytest.NewGuard(t, store, oncemill.Policy{Lease: 100 * time.Millisecond})
		rg := s.serve(t, g, Settings{}, answering(&keytest.Ledger{}, err))
		// The effect has happened: a client that believes it failed would act again.
		want(t, rg.pay("k"), code, false)
	}
}

func (s suite) foreign(t *testing.T) {
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	record := func(id, result string) {
		key := dedupstore.Key{Tenant: "default", Group: "rpc", Handler: Pay, ID: id}
		if _, err := g.Run(t.Context(), oncemill.Call{Key: key}, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte(result)}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := &keytest.Ledger{}
	rg := s.serve(t, g, Settings{}, charging(l))
	for id, result := range map[string]string{
		"json": `{"v":1}`, "no end": `{"rpc":1}`, "version": "{\"rpc\":2}\n",
		"type": "{\"rpc\":1,\"type\":\"no.Such\"}\n",
		"http": "HTTP/1.1 200 OK\r\n\r\nx", "message": "{\"rpc\":1,\"type\":\"google.protobuf.StringValue\"}\n\xff",
	} {
		record(id, result)
		wantRefusal(t, rg.pay(`"`+id+`"`), alreadyExists, "RESPONSE_DROPPED")
	}
	record("empty", "")
	wantRefusal(t, rg.pay("empty"), alreadyExists, "RESPONSE_DROPPED")
	keytest.WantRuns(t, l, 0)
}

func (s suite) tooLarge(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.memory(t, Settings{}, func(context.Context, string, string) (string, error) {
		l.Add("")
		return strings.Repeat("x", 1<<16), nil
	})
	a := rg.pay("k")
	want(t, a, ok, false)
	if len(a.Value) != 1<<16 {
		t.Errorf("%d bytes", len(a.Value))
	}
	a = rg.pay("k")
	wantRefusal(t, a, alreadyExists, "RESPONSE_DROPPED")
	if !a.replayed() {
		t.Error("it does not say that it is final")
	}
	keytest.WantRuns(t, l, 1)
}

func (s suite) metadata(t *testing.T) {
	for _, err := range []error{nil, s.Error(notFound, "no")} {
		store := &keytest.Spy{Store: keytest.NewMemory(t)}
		set := Settings{Metadata: []string{"location", "X-Binary-Bin"}}
		rg := s.serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), set,
			func(ctx context.Context, _, _ string) (string, error) {
				s.Add(ctx, "location", "/visible")
				s.Add(ctx, "session", "hidden-response")
				s.AddTrailer(ctx, "x-binary-bin", "AP8")
				return "body", err
			})
		first := rg.pay("k", "authorization", "hidden-request")
		again := rg.pay("k", "authorization", "hidden-request")
		if len(first.Metadata["session"]) != 1 || first.replayed() {
			t.Errorf("the first response has %v", first.Metadata)
		}
		if len(again.Metadata["session"]) != 0 || !again.replayed() ||
			!slices.Equal(again.Metadata["location"], []string{"/visible"}) ||
			!slices.Equal(again.Metadata["x-binary-bin"], first.Metadata["x-binary-bin"]) ||
			len(first.Metadata["x-binary-bin"]) != 1 {
			t.Errorf("the replay has %v after %v", again.Metadata, first.Metadata)
		}
		if kept := strings.Join(store.Seen(), "\n"); strings.Contains(kept, "hidden") {
			t.Errorf("the store got %s", kept)
		}
	}
}
