package oncemill

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A Guard is the implementation of the protocol: claim, attempt, settle. The files claim.go, attempt.go and settle.go
// have these steps. Everything else that makes handlers safe is a thin layer on it. It is safe for concurrent use.
type Guard struct {
	store  dedupstore.Store
	inbox  dedupstore.Transactor // the store, if it is one
	first  first
	policy Policy
	log    *slog.Logger
	meter  *telemetry.Meter

	shards     *shards
	heartbeat  *heartbeat
	duplicates duplicates
	turns      chan struct{} // has room for the suspect that runs
	scopes     *scopes
	running    batch.Pool       // handlers
	background batch.Background // settlements that are tried again

	refused pace.Limiter // of the line that says that a claim was refused by a store that works
	slow    pace.Limiter // of the line that says that renewals take long
	unwatch func()       // ends the metric of the longest run
	noInbox sync.Once    // says that a handler wants a transaction
}

// NewGuard returns a guard over a store. The error names the field of the policy that is wrong or contradicts another.
// It does not talk to the store: see Check.
func NewGuard(store dedupstore.Store, policy Policy) (*Guard, error) {
	if isnil.Nil(store) {
		return nil, invalid("store", "is nil")
	}
	policy = policy.withDefaults()
	if err := policy.validate(); err != nil {
		return nil, err
	}
	meter, err := telemetry.NewMeter(telemetry.Providers(policy.Telemetry), store)
	if err != nil {
		return nil, fmt.Errorf("oncemill: make instruments: %w", err)
	}
	inbox, _ := store.(dedupstore.Transactor)
	if err := policy.fits(inbox); err != nil {
		return nil, err
	}
	if err := policy.waits(store); err != nil {
		return nil, err
	}
	g := &Guard{
		store: store, inbox: inbox, policy: policy, log: policy.Logger, meter: meter, shards: newShards(store, policy),
		turns: make(chan struct{}, 1),
	}
	// under a policy that parks, a run must leave a trace before its handler starts
	if inbox != nil && policy.ExpiredLease != Park {
		g.first.inbox = inbox
	}
	g.heartbeat = newHeartbeat(g)
	if g.unwatch, err = meter.Oldest(g.heartbeat.oldest); err != nil {
		return nil, fmt.Errorf("oncemill: make instruments: %w", err)
	}
	g.duplicates.store, _ = store.(dedupstore.Inspector)
	g.duplicates.window = max(policy.Window, policy.FailureWindow)
	g.scopes = newScopes(store, policy)
	return g, nil
}

// Policy returns the guard's policy with its defaults filled in.
func (g *Guard) Policy() Policy { return g.policy }

// Check asks the store to look at its server, if it can. Call it at start-up to fail early. A store that must not be
// used without a check makes one before its first claim.
func (g *Guard) Check(ctx context.Context) (dedupstore.Report, error) {
	if c, ok := g.store.(dedupstore.Checker); ok {
		return c.Check(ctx)
	}
	return dedupstore.Report{}, nil
}

// A Call says what to do once, and how.
type Call struct {
	Key dedupstore.Key

	// Fingerprint identifies the content. Zero: contents are not compared.
	Fingerprint dedupstore.Fingerprint

	// Rerun asks for a stored failure to run again. It is the fence under which the failure was decided
	// (Result.Fence). A success, or a failure decided under another fence, is answered as to any duplicate. Zero:
	// no rerun.
	Rerun uint64

	// First says that this is the first time that the call is made, as counted by somebody else, such as a broker. Over
	// an inbox it then needs no claim before its transaction. If that first run ends its process, it counts as no
	// attempt.
	First bool

	// MaxWait is how long Run waits for a key that is busy or not due, and for a store that does not answer. Then it
	// returns StatusBusy, StatusNotDue or StatusStoreDown. Zero: not at all. Waiting calls do not each ask a store that
	// is down, and all go on when it answers again. A policy that fails open does not wait for the store.
	MaxWait time.Duration

	// WaitLimit bounds how many calls wait at once. When it is full, Run returns at once the answer that it would have
	// returned after MaxWait. Nil: no bound.
	WaitLimit *WaitLimit

	// Stopping, when it is closed, ends the wait: Run returns the error that it would have returned after MaxWait. Nil:
	// only the context ends it.
	//
	// The wait of a suspect for its turn is ended by these two alone. A suspect is a call whose last two runs or more
	// ended with expired leases, as those do that end their process. One of a guard runs at a time.
	Stopping <-chan struct{}

	// DeadLetter makes the messages that a failed or unknown outcome produces. Another caller may have to make them
	// again for the same failure, with the same IDs. So derive the IDs from the key and the fence under which the
	// outcome was decided. Nil: failures produce nothing.
	DeadLetter func(outcome dedupstore.Outcome, attempt int, fence uint64) []dedupstore.Produced

	// Publish publishes what the outcome produced, and returns nil only when all of it is acknowledged. Nil: the
	// caller publishes, see Result.Publication.
	Publish func(ctx context.Context, produced []dedupstore.Produced) error

	keep time.Duration // of a step: how long it is remembered at least; 0: it is none
}

// A Status says how a call ended. The zero value is no answer: never acknowledge a message for it.
type Status uint8

// How a call ended, and what the Result has beside it. Only StatusDone lets a message be acknowledged.
const (
	StatusDone        Status = iota + 1 // there is an outcome, which may be a failure: Outcome, Age, Fence, …
	StatusBusy                          // another owner is at it; Wait is what remains of its lease
	StatusNotDue                        // the key is free, but its retry is due only after Wait
	StatusRetry                         // this run failed, and may be tried again after Wait: Handler, Attempt
	StatusLost                          // another owner took over during the run; it settles the message: Handler
	StatusMismatch                      // the ID is known with other content; nothing ran
	StatusStoreDown                     // the store did not answer, or could not read its record; nothing ran: Err
	StatusUnrecorded                    // the handler ran, and may run again: no outcome could be stored: Handler, Err
	StatusUnpublished                   // what the run produced could not be published; it will be, after Wait: Err
)

func (s Status) String() string {
	names := [...]string{
		"no answer", "done", "busy", "not due", "retry", "lost", "mismatch", "store down", "unrecorded", "unpublished",
	}
	return names[min(int(s), len(names)-1)]
}

// A Result is how a call ended. Of a StatusUnpublished run the handler does not run again, unless its outputs are
// stored nowhere: those over Policy.MaxProducedBytes, or for which the store has no room.
type Result struct {
	Status    Status
	Duplicate bool // an earlier run decided the outcome
	Bypassed  bool // the handler ran unguarded: the store did not answer, or shadow mode
	Uncounted bool // the attempt was given back
	Outcome   dedupstore.Outcome
	Age       time.Duration // since the key's first claim, for duplicates
	Wait      time.Duration // after which the message should be delivered again
	Fence     uint64        // under which the outcome was decided, for Call.Rerun; 0 if nothing was recorded
	Attempt   int           // the run that this call made, from 1; 0 if it made none under a claim

	// Publication is set if Call.Publish is nil and something has to be published before the message may be
	// acknowledged.
	Publication *Publication

	Handler error // what this call's handler returned; nil: it succeeded, or did not run
	Err     error // why the store or the publisher refused

	key  *dedupstore.Key
	took time.Duration // the run that this call made
}

// Failure returns the outcome as an *Error, or nil if it is a success.
func (r Result) Failure() error {
	if r.Outcome.Kind == dedupstore.Succeeded {
		return nil
	}
	return r.error()
}

func (r Result) error() *Error {
	e := &Error{Result: r}
	if r.key != nil {
		e.Key = *r.key
	}
	return e
}

// A RunFunc does the work. Its context carries the Run (FromContext) and is cancelled with cause ErrClaimLost when the
// claim is lost. Over an inbox (dedupstore.Transactor) the context also carries the transaction. When the database
// refuses it because of others, the work is done again in a new one. A run inside this one has its own transaction, or
// over a store without an inbox none.
//
// Of the returned outcome the guard uses Result and, with a nil error, Produced. The error decides its Kind:
//
//   - nil: succeeded.
//   - Permanent: failed; all duplicates get it.
//   - NoEffect, RetryAfter or any other: released for another attempt, or failed when that was the last. Under a policy
//     that parks, only NoEffect is released, and all others leave the outcome unknown.
//   - Uncounted, or another error with a method Uncounted() bool that returns true: as above, but the attempt does not
//     count. The next one comes after the policy's backoff, or when RetryAfter says.
//   - an error after the caller's context was cancelled: as above, for as many times as the policy has attempts. The
//     next one comes at once.
//
// An error of a nested guard says nothing about this run: wrap it to decide.
type RunFunc func(ctx context.Context) (dedupstore.Outcome, error)

// Run runs fn unless the key has an outcome or another owner, and waits as the call says. A nil error means StatusDone:
// there is an outcome, which may be a failure, and the message may be acknowledged once Result.Publication, if any, is
// done. After any error it must not be. The error is an *Error with the Result, but for these:
//
//   - *dedupstore.InvalidError: the call itself is wrong.
//   - the cause of ctx: it ended before the handler ran.
//
// When ctx ends while a claim is on its way, Run waits for the answer so that it can give the claim back. If the store
// hangs, that takes a sixth of the lease, at most some 5 s, as long as the store heeds contexts. Run tries for some 5 s
// to give a granted claim back, also before StatusStoreDown, and under a policy that parks until the lease ends.
func (g *Guard) Run(ctx context.Context, call Call, fn RunFunc) (Result, error) {
	r := &waiting{own: call, fn: fn}
	r.init(g, &r.own, r, newToken())
	returned := false
	defer func() {
		if !returned {
			r.leave()
		}
	}()
	res, err := r.end(ctx, r.settle(ctx, r.begin(ctx)))
	returned = true
	return res, err
}

// A waiting run is one whose caller waits for it.
type waiting struct {
	run
	own Call
	fn  RunFunc
}

func (*waiting) claimed(*run) {}

func (w *waiting) handle(ctx context.Context, _ *run) (dedupstore.Outcome, error) { return w.fn(ctx) }

func (*waiting) ended(*run, Result, error) {}

// begin does all that comes before a settlement: it claims, and attempts what it has claimed.
func (r *run) begin(ctx context.Context) *ending {
	switch {
	case r.guard.policy.Shadow:
		return r.shadow(ctx)
	case r.wrong != nil:
		return r.ends(ending{err: r.wrong})
	case r.first:
		if e, ended := r.attemptFirst(ctx); ended {
			return e
		}
	}
	switch e, next := r.claim(ctx); next {
	case toRun:
		return r.attempt(ctx)
	case toBypass:
		return r.bypass(ctx)
	default:
		return e
	}
}

// Close waits until nothing that the guard has begun is under way, and notes the duplicates that it has counted. Call
// it after the last call.
func (g *Guard) Close() {
	g.running.Wait()
	g.shards.wait()
	g.background.Wait() // a settlement that failed goes on there
	g.duplicates.close()
	g.unwatch()
	g.scopes.close()
}

func (c *Call) validate() error {
	if strings.HasPrefix(c.Key.Handler, shadowPrefix) {
		return invalid("Call.Key.Handler",
			fmt.Sprintf("is %q: names that begin with %q are the engine's own", c.Key.Handler, shadowPrefix))
	}
	if ids.IsOfStep(c.Key.Handler) && c.keep == 0 {
		return invalid("Call.Key.Handler",
			fmt.Sprintf("is %q: names with %q are those of steps", c.Key.Handler, ids.StepMark))
	}
	if err := c.Key.Validate(); err != nil {
		return err
	}
	if c.MaxWait < 0 {
		return invalid("Call.MaxWait", fmt.Sprintf("is %v, want at least 0", c.MaxWait))
	}
	return nil
}
