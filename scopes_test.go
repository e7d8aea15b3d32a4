package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A registry is a store in memory that counts what it is asked about scopes, and may refuse it.
type registry struct {
	*dedupstore.Memory
	reads, noted atomic.Int64
	refuse       func(ctx context.Context) error // nil: it does not
}

func newRegistry(t testing.TB) *registry {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &registry{Memory: m}
}

func (r *registry) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	r.noted.Add(int64(len(uses)))
	if r.refuse != nil {
		return r.refuse(ctx)
	}
	return r.Memory.NoteScopes(ctx, uses)
}

func (r *registry) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	r.reads.Add(1)
	if r.refuse != nil {
		return nil, r.refuse(ctx)
	}
	return r.Memory.Scopes(ctx, tenant, group)
}

// wants wants the store to have been asked about so many scopes, and of so many to be noted.
func (r *registry) wants(t *testing.T, asked, noted int64) {
	t.Helper()
	synctest.Wait()
	if r.reads.Load() != asked || r.noted.Load() != noted {
		t.Errorf("the store was asked about %d scopes and noted %d, want %d and %d", r.reads.Load(), r.noted.Load(),
			asked, noted)
	}
}

func done(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil }

// runs runs messages of some scopes in turn.
func runs(t *testing.T, g *oncemill.Guard, from, n int, scopes ...dedupstore.Scope) {
	t.Helper()
	for i := from; i < from+n; i++ {
		s := scopes[i%len(scopes)]
		c := oncemill.Call{Key: dedupstore.Key{Tenant: s.Tenant, Group: s.Group, Handler: s.Handler, ID: strconv.Itoa(i)}}
		if _, err := g.Run(t.Context(), c, done); err != nil {
			t.Fatal(err)
		}
	}
}

var charging = dedupstore.Scope{Tenant: "default", Group: "billing", Handler: "charge"}

func TestGuard_AsksNothingOfScopesForAMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRegistry(t)
		g := newGuard(t, r, oncemill.Policy{})
		refunding := charging
		refunding.Handler = "refund"
		for _, s := range []dedupstore.Scope{charging, refunding} {
			g.Announce(s)
			g.Announce(s)
			runs(t, g, 0, 1, s)
		}
		r.wants(t, 2, 2)
		runs(t, g, 0, 1000, charging, refunding)
		r.wants(t, 2, 2)
		time.Sleep(time.Hour)
		r.wants(t, 2, 2)
		runs(t, g, 1000, 1000, charging, refunding)
		r.wants(t, 2, 4)
		uses, err := r.Scopes(t.Context(), "default", "billing")
		for _, u := range uses {
			if err != nil || u.Last.Sub(u.First) != time.Hour {
				t.Errorf("%s is remembered from %v to %v, error %v, want an hour", u.Scope, u.First, u.Last, err)
			}
		}
	})
}

func TestGuard_NotesABoundedNumberOfScopes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRegistry(t)
		g := newGuard(t, r, oncemill.Policy{})
		var accounts []dedupstore.Scope
		for i := range 1100 {
			accounts = append(accounts, dedupstore.Scope{Tenant: fmt.Sprint("account-", i), Group: "api", Handler: "pay"})
		}
		runs(t, g, 0, len(accounts), accounts...)
		runs(t, g, 0, len(accounts), accounts...)
		synctest.Wait()
		if got := r.noted.Load(); got != 1000 {
			t.Errorf("%d scopes are noted, want 1000", got)
		}
	})
}

// A rememberingInbox makes first runs without a claim, and remembers scopes.
type rememberingInbox struct {
	*firstInbox
	dedupstore.ScopeKeeper
}

func TestGuard_NotesFirstRunsOfAnInboxToo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRegistry(t)
		inbox := rememberingInbox{newFirstInbox(t), r}
		g := newGuard(t, inbox, oncemill.Policy{})
		c := call("1")
		c.First = true
		if _, err := g.Run(t.Context(), c, done); err != nil || inbox.firsts.Load() != 1 {
			t.Fatalf("%v, %d first runs", err, inbox.firsts.Load())
		}
		r.wants(t, 0, 1)

		r = newRegistry(t)
		inbox = rememberingInbox{newFirstInbox(t), r}
		batch := newGuard(t, inbox, oncemill.Policy{})
		batchOf(t, batch, func(context.Context, []int) []error { return nil }, firstly("1"), firstly("2"))
		batch.Close()
		r.wants(t, 0, 1)
	})
}

func TestGuard_ClaimsGoOnOverAStoreThatRefusesScopes(t *testing.T) {
	refused := errors.New("no such table: call Migrate")
	for name, refuse := range map[string]func(context.Context) error{
		"a store that refuses": func(context.Context) error { return refused },
		"a store that hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return refused
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				log := &lines{level: slog.LevelWarn}
				r := newRegistry(t)
				r.refuse = refuse
				g := newGuard(t, r, oncemill.Policy{Logger: slog.New(log)})
				began := time.Now()
				g.Announce(charging)
				runs(t, g, 0, 1000, charging)
				if took := time.Since(began); took > 0 {
					t.Errorf("1,000 claims waited %v", took)
				}
				time.Sleep(2 * time.Hour)
				runs(t, g, 1000, 1000, charging)
				g.Close()
				if len(log.lines) != 1 || !strings.Contains(log.lines[0], "does not remember the names") {
					t.Fatalf("lines %q, want one", log.lines)
				}
				wantAttrs(t, log.attrs[0], map[string]any{"level": slog.LevelWarn, "error": refused})
			})
		})
	}
}

func TestGuard_WarnsOfANewNameInAnOldGroup(t *testing.T) {
	for name, c := range map[string]struct {
		policy oncemill.Policy
		old    string
		away   bool // the store does not answer at first
		want   int
	}{
		"a new name":                  {old: "settle", want: 1},
		"a known name":                {old: "charge"},
		"shadow mode":                 {policy: oncemill.Policy{Shadow: true}, old: "settle"},
		"what shadow mode counts":     {old: "~settle"},
		"a store that comes up later": {old: "settle", away: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				log := &lines{level: slog.LevelWarn}
				r := newRegistry(t)
				now := time.Now()
				used := dedupstore.ScopeUse{First: now.Add(-time.Hour), Last: now.Add(-2 * time.Minute)}
				used.Scope = dedupstore.Scope{Tenant: "default", Group: "billing", Handler: c.old}
				if err := r.NoteScopes(t.Context(), []dedupstore.ScopeUse{used}); err != nil {
					t.Fatal(err)
				}
				if c.away {
					r.refuse = func(context.Context) error { return errDown }
				}
				c.policy.Logger = slog.New(log)
				g := newGuard(t, r, c.policy)
				g.Announce(charging)
				synctest.Wait()
				r.refuse = nil
				runs(t, g, 0, 10, charging)
				g.Close()
				warned := slices.DeleteFunc(log.lines, func(l string) bool { return strings.Contains(l, "remember") })
				if len(warned) != c.want {
					t.Fatalf("lines %q, want %d", warned, c.want)
				}
				if c.want == 0 || c.away {
					return
				}
				want := "oncemill: handler charge has no records in group billing; settle has, last used 2 minutes " +
					"ago: if this is a new name, everything within the window runs again"
				if warned[0] != want {
					t.Errorf("the line is %q, want %q", warned[0], want)
				}
				wantAttrs(t, log.attrs[0], map[string]any{
					"level": slog.LevelWarn, "tenant": "default", "group": "billing", "handler": "charge", "other": "settle",
					"other_used": used.Last, "window": 24 * time.Hour,
				})
			})
		})
	}
}

// nameless hides that a store remembers scopes.
type nameless struct{ dedupstore.Inspector }

// BenchmarkGuard_Scopes shows what a claim costs whose scope is remembered: no allocation more.
func BenchmarkGuard_Scopes(b *testing.B) {
	for name, store := range map[string]dedupstore.Store{
		"remembered": newRegistry(b), "not remembered": nameless{newRegistry(b)},
	} {
		for _, handlers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d handlers", name, handlers), func(b *testing.B) {
				g := newGuard(b, store, oncemill.Policy{})
				b.ReportAllocs()
				for i := range b.N { // duplicates: the record costs nothing
					c := call("1")
					c.Key.Handler = [...]string{"charge", "refund"}[i%handlers]
					if _, err := g.Run(b.Context(), c, done); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
