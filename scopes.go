package oncemill

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
)

// scopes tells the store in which scopes the guard claims, and warns of a handler whose name may have changed. It
// delays nothing: one goroutine at a time asks the store, while there is something to ask.
type scopes struct {
	store  dedupstore.ScopeKeeper // nil: it remembers none, or the policy is for shadow mode
	window time.Duration
	log    *slog.Logger

	claimed    atomic.Pointer[dedupstore.Scope] // the one of the last claim, if that is noted
	began      atomic.Pointer[dedupstore.Scope] // the one that was announced last
	background batch.Background

	mu        sync.Mutex
	known     map[dedupstore.Scope]*knownScope
	announced []dedupstore.Scope    // that the store is to be asked about
	used      []dedupstore.ScopeUse // that it is to be told
	asking    bool                  // a goroutine is
	renewal   *time.Timer           // has all noted again
	failed    sync.Once             // says that the store remembers none
}

// A knownScope is what a guard has done about a scope.
type knownScope struct {
	scope            dedupstore.Scope
	announced, noted bool
}

const (
	// noteScopesEvery is how often the store is told that a scope is still used.
	noteScopesEvery = time.Hour

	// mostScopes bounds the scopes that are noted: the tenants of HTTP requests are accounts.
	mostScopes = 1000
)

func newScopes(store dedupstore.Store, policy Policy) *scopes {
	s := &scopes{window: policy.Window, log: policy.Logger, known: map[dedupstore.Scope]*knownScope{}}
	if !policy.Shadow {
		s.store, _ = store.(dedupstore.ScopeKeeper)
	}
	return s
}

// covers reports whether a scope is that of a key.
func covers(scope *dedupstore.Scope, key *dedupstore.Key) bool {
	return scope != nil && scope.Handler == key.Handler && scope.Group == key.Group && scope.Tenant == key.Tenant
}

// note has the scope of a key noted, unless it has been within the hour. Each claim calls it.
func (s *scopes) note(key *dedupstore.Key) {
	if s.store == nil || covers(s.claimed.Load(), key) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.get(key.Scope())
	if one == nil {
		return
	}
	s.claimed.Store(&one.scope)
	if one.noted {
		return
	}
	one.noted = true
	now := time.Now()
	s.used = append(s.used, dedupstore.ScopeUse{Scope: one.scope, First: now, Last: now})
	if s.renewal == nil {
		s.renewal = time.AfterFunc(noteScopesEvery, s.renew)
	}
	s.ask()
}

// get returns what is known of a scope; nil: there are too many. The caller has the lock.
func (s *scopes) get(scope dedupstore.Scope) *knownScope {
	one := s.known[scope]
	if one == nil && len(s.known) < mostScopes {
		one = &knownScope{scope: scope}
		s.known[scope] = one
	}
	return one
}

// renew has all scopes noted again that are claimed in from now on.
func (s *scopes) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.known {
		one.noted = false
	}
	s.claimed.Store(nil)
	s.renewal = nil
}

// announce has the store asked about a scope, once.
func (s *scopes) announce(scope dedupstore.Scope) {
	if s.store == nil {
		return
	}
	if last := s.began.Load(); last != nil && *last == scope {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.get(scope)
	if one == nil {
		return
	}
	s.began.Store(&one.scope)
	if one.announced {
		return
	}
	one.announced = true
	s.announced = append(s.announced, scope)
	s.ask()
}

// ask begins to ask the store. The caller has the lock.
func (s *scopes) ask() {
	if !s.asking {
		s.asking = true
		s.background.Go(s.work)
	}
}

// work asks the store while there is something to ask. It asks about a scope before it notes that this one is used. If
// the store did not answer about one, it asks again when there is something to note, because then claims are answered.
func (s *scopes) work() {
	var unanswered []dedupstore.Scope
	for {
		s.mu.Lock()
		announced, used := s.announced, s.used
		s.announced, s.used = nil, nil
		if s.asking = len(announced)+len(used) > 0; !s.asking {
			s.announced = unanswered
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, scope := range announced {
			if !s.within(func(ctx context.Context) error { return s.judge(ctx, scope) }) {
				unanswered = append(unanswered, scope)
			}
		}
		if len(used) > 0 {
			s.within(func(ctx context.Context) error { return s.store.NoteScopes(ctx, used) })
		}
	}
}

// within asks the store, and says once if it cannot answer.
func (s *scopes) within(ask func(ctx context.Context) error) (answered bool) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	err := shielded(func() error { return ask(ctx) })
	if err != nil {
		s.failed.Do(func() {
			s.log.WarnContext(ctx, "oncemill: the store does not remember the names of handlers: one that changes is "+
				"not noticed; claims go on", "error", err)
		})
	}
	return err == nil
}

// judge warns of a scope that may be another one under a new name.
func (s *scopes) judge(ctx context.Context, scope dedupstore.Scope) error {
	uses, err := s.store.Scopes(ctx, scope.Tenant, scope.Group)
	if err != nil {
		return err
	}
	now := time.Now()
	if old, doubtful := maybeRenamed(scope, uses, s.window, now); doubtful {
		warnRenamed(ctx, s.log, scope, old, s.window, now)
	}
	return nil
}

// close waits until nothing is asked any more.
func (s *scopes) close() {
	s.mu.Lock()
	if s.renewal != nil {
		s.renewal.Stop()
	}
	s.mu.Unlock()
	s.background.Wait()
}
