package rpctest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/rpc"
)

// unguarded serves without a guard's work: all methods pass. It remembers the keys that clients send.
func (s suite) unguarded(t testing.TB, results ...error) (address string, keys func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	set := Settings{
		Account: func(context.Context) (string, error) { return "a", nil }, Pass: func(string) bool { return true },
	}
	address = s.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}), set, nil,
		func(ctx context.Context, _, _ string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, s.Incoming(ctx, "idempotency-key"))
			return "done", results[min(len(seen), len(results))-1]
		})
	return address, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

func (s suite) client(t *testing.T) {
	down := s.Error(unavailable, "down")
	addr, keys := s.unguarded(t, down, down, nil)
	call := s.Dial(t, addr, true)
	request := wrapperspb.String("1")
	if a := call(t.Context(), Pay, request); a.Code != ok || a.Value != "done" {
		t.Fatalf("answered %d %q", a.Code, a.Message)
	}
	call(t.Context(), Pay, request)
	call(t.Context(), Look, request)
	call(s.WithKey(t.Context(), `my "key"`), Pay, request)
	call(s.WithKey(t.Context(), "mine"), Pay, request, "idempotency-key", "the header's")
	got := keys()
	if len(got) != 7 {
		t.Fatalf("the server was called %d times: %q", len(got), got)
	}
	if got[0] == "" || got[1] != got[0] || got[2] != got[0] || got[3] == "" || got[3] == got[0] || got[4] != "" ||
		got[5] != `"my \"key\""` || got[6] != "the header's" || !strings.HasPrefix(got[0], `"`) {
		t.Errorf("the server got the keys %q", got)
	}
	for _, bad := range []string{"", "\u00e4"} {
		if a := call(s.WithKey(t.Context(), bad), Pay, request); a.Code != invalidArgument || len(keys()) != 7 {
			t.Errorf("the key %q was answered with %d %q", bad, a.Code, a.Message)
		}
	}
}

func (s suite) clientCounts(t *testing.T) {
	for code := uint32(1); code <= 16; code++ {
		addr, keys := s.unguarded(t, s.Error(code, "no"), nil)
		a := s.Dial(t, addr, true)(t.Context(), Pay, wrapperspb.String("1"))
		again := rpc.ServerError(code) && code != unimplemented || code == resourceExhausted
		if again != (a.Code == ok) || again != (len(keys()) == 2) {
			t.Errorf("code %d: sent %d times, answered %d", code, len(keys()), a.Code)
		}
	}

	// A stored failure stays what it is.
	var calls atomic.Int32
	set := Settings{Account: func(context.Context) (string, error) { calls.Add(1); return "a", nil }}
	stored := s.memory(t, set, answering(&keytest.Ledger{}, s.Error(unavailable, "down")))
	want(t, stored.pay("k"), unavailable, false)
	want(t, s.Dial(t, stored.addr, true)(s.WithKey(t.Context(), "k"), Pay, wrapperspb.String("100")), unavailable, true)
	if calls.Load() != 2 {
		t.Errorf("the stored failure was asked for %d times", calls.Load()-1)
	}

	// A conflict is over at some time.
	l := &keytest.Ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	guard := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{Lease: 300 * time.Millisecond})
	rg := s.serve(t, guard, Settings{}, func(context.Context, string, string) (string, error) {
		if l.Add("") == 1 {
			close(begun)
			<-end
		}
		return "", s.Error(unavailable, "down")
	})
	first := make(chan Answer)
	go func() { first <- rg.pay("k") }()
	<-begun
	second := make(chan Answer)
	call := s.Dial(t, rg.addr, true)
	go func() { second <- call(s.WithKey(context.Background(), "k"), Pay, wrapperspb.String("100")) }()
	close(end)
	want(t, <-first, unavailable, false)
	want(t, <-second, unavailable, true)
	keytest.WantRuns(t, l, 1)

	// A pause that is longer than what is left, to the client or to the call, is not made.
	for lease, limit := range map[time.Duration]time.Duration{
		time.Hour: 3 * time.Hour, 50 * time.Second: 25 * time.Second,
	} {
		slow, l, free, busy := s.occupied(t, Settings{}, oncemill.Policy{Lease: lease})
		ctx, cancel := context.WithTimeout(s.WithKey(t.Context(), "k"), limit)
		defer cancel()
		wantRefusal(t, s.Dial(t, slow.addr, true)(ctx, Pay, wrapperspb.String("100")), aborted, "IN_PROGRESS")
		if ctx.Err() != nil {
			t.Errorf("with a lease of %v it waited for its end", lease)
		}
		free()
		want(t, <-busy, ok, false)
		keytest.WantRuns(t, l, 1)
	}
}
