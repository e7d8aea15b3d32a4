package oncemilltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
)

// A Case is a handler, and what it is guarded with. Each method delivers a new message to it, and tells how often the
// handler ran. Each delivery goes to a process of its own: a guard that shares only the store with the others.
//
// The error is that of the last delivery. It is nil if the message has succeeded, an *oncemill.Error with StatusDone if
// it has failed or its outcome is unknown, and otherwise that of oncemill.Guard.Run: the message would come again.
//
// The methods are safe for concurrent use if the handler is.
type Case struct {
	// Handler does the work for one message. Required.
	Handler func(ctx context.Context) error

	// Store keeps the records. Give it an inbox for a handler that wants its transaction, such as Store.Inbox() of
	// pgstore. Nil: a store in memory.
	Store dedupstore.Store

	// Policy is the policy of the handler. Zero: oncemill.LowValue. Without a Logger nothing is logged.
	Policy oncemill.Policy
}

// Once delivers the message once. The handler's context has a run, and over an inbox the transaction, which is
// committed if the handler returns nil.
func (c Case) Once(ctx context.Context) error {
	m, err := c.message(ctx)
	if err != nil {
		return err
	}
	return m.deliver(ctx, c.Handler, &process{})
}

// Twice delivers the message, and then a copy. A handler that succeeds, or fails for good, runs once.
func (c Case) Twice(ctx context.Context) (runs int, err error) {
	m, err := c.message(ctx)
	if err != nil {
		return 0, err
	}
	_ = m.deliver(ctx, c.Handler, &process{}) // if it fails, the copy is a second try, and one run more
	err = m.deliver(ctx, c.Handler, &process{})
	return m.ran(), err
}

// Together delivers the message and a copy at the same time: the store answers both before a handler starts. One of
// them runs, and the other waits for its outcome, up to a minute. The error has those of both.
func (c Case) Together(ctx context.Context) (runs int, err error) {
	m, err := c.message(ctx)
	if err != nil {
		return 0, err
	}
	var errs [2]error
	var claims, deliveries sync.WaitGroup
	claims.Add(len(errs))
	for i := range errs {
		deliveries.Go(func() {
			answered := sync.OnceFunc(func() {
				claims.Done()
				claims.Wait()
			})
			defer answered() // it may never get to a claim
			errs[i] = m.deliver(ctx, c.Handler, &process{answered: answered})
		})
	}
	deliveries.Wait()
	return m.ran(), errors.Join(errs[:]...)
}

// CrashAfterEffect delivers the message to a process that dies when the handler has returned nil, before the outcome is
// stored. When the lease has ended, the message is delivered again. What to expect depends on the tier:
//
//   - A leased claim: the handler runs again, and so do its effects, unless the other side knows the key that
//     oncemill.Run.ID makes.
//   - An inbox: the handler runs again, but the effects of the first run were rolled back.
//   - A policy that parks, such as oncemill.Irreversible: the handler does not run again, and the outcome is unknown.
//
// If the first run does not get as far, its error is returned, and nothing is delivered again.
func (c Case) CrashAfterEffect(ctx context.Context) (runs int, err error) {
	m, err := c.message(ctx)
	if err != nil {
		return 0, err
	}
	p := &process{dies: true}
	if err = m.deliver(ctx, c.Handler, p); !p.dead {
		return m.ran(), cmp.Or(err, errAlive)
	}
	err = m.deliver(ctx, c.Handler, &process{})
	return m.ran(), err
}

var errAlive = errors.New("oncemilltest: the handler ran without a record to lose: Policy.StoreDown is \"open\", and " +
	"the store does not answer: start it")

// FailThenSucceed delivers the message, and lets the run fail after the handler has returned nil, as if an answer had
// been lost. Then it delivers the message again. The handler runs twice. Its effects outside of an inbox are repeated,
// unless the other side knows the key that oncemill.Run.ID makes. Under a policy that parks, the handler runs once.
func (c Case) FailThenSucceed(ctx context.Context) (runs int, err error) {
	m, err := c.message(ctx)
	if err != nil {
		return 0, err
	}
	failing := func(ctx context.Context) error { return cmp.Or(c.Handler(ctx), errFailed) }
	_ = m.deliver(ctx, failing, &process{}) // if that is final, the next delivery says so
	err = m.deliver(ctx, c.Handler, &process{})
	return m.ran(), err
}

var errFailed = errors.New("oncemilltest: this run is made to fail after its effect")

// A message is on its way to the handler.
type message struct {
	call   oncemill.Call
	store  dedupstore.Store
	policy oncemill.Policy
	runs   atomic.Int64
}

// maxWait is how long a copy waits for the run of another, and a redelivery for a lease that could not be shortened.
const maxWait = time.Minute

// message makes a new message for the case.
func (c Case) message(ctx context.Context) (*message, error) {
	switch {
	case c.Handler == nil:
		return nil, invalid("Case.Handler", "is nil: give it the handler, with its message bound by a closure")
	case c.Store == nil:
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			return nil, err
		}
		c.Store = memory
	case isnil.Nil(c.Store):
		return nil, invalid("Case.Store", "holds a nil pointer: leave it out for a store in memory")
	}
	if checker, ok := c.Store.(dedupstore.Checker); ok { // or else each delivery waits for a store that is not there
		if _, err := checker.Check(ctx); err != nil {
			return nil, fmt.Errorf("oncemilltest: Case.Store: %w", err)
		}
	}
	if c.Policy.Logger == nil {
		c.Policy.Logger = slog.New(slog.DiscardHandler)
	}
	key := dedupstore.Key{Tenant: "default", Group: "oncemilltest", Handler: "handler", ID: ids.New()}
	return &message{
		call: oncemill.Call{Key: key, MaxWait: maxWait}, store: c.Store, policy: c.Policy,
	}, nil
}

func (m *message) ran() int { return int(m.runs.Load()) }

// deliver gives the message to a process, and returns how that ended.
func (m *message) deliver(ctx context.Context, handle func(context.Context) error, p *process) error {
	guard, err := oncemill.NewGuard(p.over(m.store), m.policy)
	if err != nil {
		return err
	}
	defer guard.Close()
	res, err := guard.Run(ctx, m.call, func(ctx context.Context) (dedupstore.Outcome, error) {
		m.runs.Add(1)
		return dedupstore.Outcome{}, handle(ctx)
	})
	if err != nil {
		return err
	}
	return res.Failure()
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "oncemilltest", Field: field, Problem: problem}
}
