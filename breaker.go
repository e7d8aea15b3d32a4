package oncemill

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/pace"
)

// When the breaker opens: claims failed one after the other and none was answered in between. Claims that share a
// connection fail together, so the failures must also span some time. One key may always fail, so they must be of
// several keys.
const (
	tripFailures = 3
	tripSpan     = 100 * time.Millisecond
)

// tellSpan is how long claims of one key fail, and no other key is claimed, until the log says so. One key does not
// open the breaker. Where it is the only key, as the first of a partition, the log would not show that the store is
// down.
const tellSpan = time.Second

// How long the store is left alone while the breaker is open. It doubles after each probe that failed. It is shortened
// at random by up to a half, so that processes do not come back to the store in step.
const (
	minOpen = 100 * time.Millisecond
	maxOpen = time.Second
)

// sayAgain is how often the log says that the store is down while it is. The first error may be that of a broken
// connection; only later ones show why there is no new one, such as an expired certificate.
const sayAgain = time.Minute

// A breaker keeps claims from a store that is down. It opens when claims fail in a row, lets one of them through after
// each pause, and closes when that one is answered. Only claims pass it: extends and settles hold what matters, and are
// always tried. It is safe for concurrent use, and its clock is that of its callers: no goroutine works for it.
type breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
	streak  time.Time // when the first of the failures in a row was reported; the circuit's lock guards it
	policy  StoreDown
	log     *slog.Logger

	// healthy says that the last claim was answered, and that the breaker is closed. Then a further answer changes
	// nothing, and the circuit need not be told: it counts failures in a row only.
	healthy atomic.Bool

	alone chan struct{} // has those that ask alone

	mu     sync.Mutex
	cause  error          // the last failure that says that the store is down
	took   time.Duration  // that claim
	first  dedupstore.Key // of the failures in a row
	began  time.Time      // when it failed first
	more   bool           // another key is among them
	warned bool           // the log has said that claims of one key fail
	notes  []func()       // lines to log when no lock is held
	down   bool           // open, or a probe is under way
	since  time.Time      // when it opened
	said   time.Time      // when the log had last that it is
	pause  time.Duration  // before the next probe, without jitter
	next   time.Time      // when the next probe may be sent
	back   chan struct{}  // closed when the store answers again, and replaced then
}

func newBreaker(policy StoreDown, log *slog.Logger) *breaker {
	b := &breaker{
		policy: policy, log: log, back: make(chan struct{}), alone: make(chan struct{}, mostAlone),
	}
	b.circuit = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       time.Nanosecond, // it is fixed: the pauses, which grow and have jitter, are kept here
		ReadyToTrip:   b.trips,
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoVerdict) },
		OnStateChange: b.changed,
	})
	b.healthy.Store(true) // until a claim says otherwise
	return b
}

// refusalError is the error of a claim that was not sent because the store is down.
type refusalError struct {
	cause error         // why it is taken to be down
	wait  time.Duration // until the next claim may be sent
}

func (e *refusalError) Error() string { return e.cause.Error() }

// claim asks the store, or fails at once with a *refusalError while the store is down. Ask must not end with the
// caller, because its error counts as the store's. It is told whether it may travel together with others, and then
// makes the report. While failures count, each claim asks alone, and waits for its turn until ctx ends.
func (b *breaker) claim(ctx context.Context, key *dedupstore.Key, ask func(together bool) error) error {
	if b.healthy.Load() {
		if err := ask(true); !errors.Is(err, errUnasked) {
			return err
		}
	}
	select {
	case b.alone <- struct{}{}: // what waited for a batch that failed comes at once
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.alone }()
	return b.guarded(key, func() error { return ask(false) })
}

// mostAlone is how many claims are asked alone at once, while failures count.
const mostAlone = 4

// errUnasked is the result of claims that were to travel together when one before them had failed.
var errUnasked = errors.New("a claim before this one has failed")

// report tells the circuit of a claim that failed while everything was well, and when it was sent. If claims were sent
// together, call it before the next ones are sent.
func (b *breaker) report(key *dedupstore.Key, sent time.Time, err error) {
	b.mu.Lock()
	down := b.down
	b.mu.Unlock()
	if down { // what was sent before it opened is no probe
		return
	}
	defer b.tell()
	_, _ = b.circuit.Execute(func() (struct{}, error) { return struct{}{}, b.verdict(key, sent, err) })
}

// guarded is claim while failures count.
func (b *breaker) guarded(key *dedupstore.Key, ask func() error) error {
	if err := b.refused(); err != nil {
		return err
	}
	defer b.tell()
	var err error
	asked := false
	_, _ = b.circuit.Execute(func() (struct{}, error) {
		asked = true
		sent := time.Now()
		err = ask()
		return struct{}{}, b.verdict(key, sent, err)
	})
	if !asked {
		return b.probing()
	}
	return err
}

// errNoVerdict is what the circuit gets of a claim that says nothing about the store.
var errNoVerdict = errors.New("no verdict")

// verdict is what a claim says about the store: nil that it is up, errNoVerdict nothing, and any other that it is down.
// A full store, a record that cannot be read and a claim that is not durable are answers: other keys work.
func (b *breaker) verdict(key *dedupstore.Key, sent time.Time, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil, refuses(err), errors.Is(err, ErrClaimLost):
		if b.warned && !b.down {
			b.note("oncemill: the store answers again", "down", time.Since(b.began))
		}
		b.first, b.more, b.warned = dedupstore.Key{}, false, false
		b.healthy.Store(!b.down) // an answer to what was sent before it opened closes nothing
		return nil
	case is[*dedupstore.InvalidError](err), is[*batch.PanicError](err): // a bug is not to be hidden behind a pause
		return errNoVerdict
	case b.first == dedupstore.Key{}:
		b.first, b.began = *key, time.Now()
	case b.first != *key:
		b.more = true
	}
	b.cause, b.took = err, time.Since(sent)
	b.healthy.Store(false)
	return err
}

// note keeps a warning for tell.
func (b *breaker) note(text string, args ...any) {
	b.notes = append(b.notes, func() { b.log.Warn(text, args...) })
}

// tell logs the lines that are waiting. It holds no lock, because a log handler may call this guard.
func (b *breaker) tell() {
	b.mu.Lock()
	notes := b.notes
	b.notes = nil
	b.mu.Unlock()
	for _, note := range notes {
		note()
	}
}

// refused returns a *refusalError unless the store is up or due to be probed.
func (b *breaker) refused() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.down {
		return nil
	}
	if wait := time.Until(b.next); wait > 0 {
		return &refusalError{b.cause, wait}
	}
	b.rest() // this one is the probe, whatever becomes of it
	return nil
}

// probing returns the refusal of a claim that found a probe under way. Waiting calls look again after another pause,
// because the probe may hang, or its caller may give up.
func (b *breaker) probing() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down && time.Until(b.next) <= 0 {
		b.rest()
	}
	return &refusalError{b.cause, max(0, time.Until(b.next))}
}

func (b *breaker) rest() {
	b.next = time.Now().Add(b.pause - pace.Draw(context.Background(), b.pause/2+1))
}

// recovery returns what is closed when the store answers again after it was down.
func (b *breaker) recovery() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.back
}

// trips reports, after each failure while the breaker is closed, whether it opens.
func (b *breaker) trips(counts gobreaker.Counts) bool {
	if counts.ConsecutiveFailures == 1 {
		b.streak = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if counts.ConsecutiveFailures < tripFailures || time.Since(b.streak) < tripSpan {
		return false
	}
	due := !b.warned || time.Since(b.said) >= sayAgain
	if !b.more && due && b.first != (dedupstore.Key{}) && time.Since(b.began) >= tellSpan { // else they panicked
		b.warned, b.said = true, time.Now()
		b.note("oncemill: claims fail; a message waits, or runs unguarded if Policy.StoreDown is open",
			"id", b.first.ID, "key", b.first.String(), "took", b.took, "error", b.cause, "policy", string(b.policy))
	}
	return b.more
}

// changed follows the circuit, one change at a time.
func (b *breaker) changed(_ string, _, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case to == gobreaker.StateClosed:
		b.down = false
		close(b.back)
		b.back = make(chan struct{})
		b.note("oncemill: the store answers again", "down", time.Since(b.since))
	case to == gobreaker.StateOpen && b.down: // the probe failed
		b.pause = min(2*b.pause, maxOpen)
		b.rest()
		if time.Since(b.said) >= sayAgain {
			b.said = time.Now()
			b.note("oncemill: the store is still down", "operation", "claim", "took", b.took,
				"error", b.cause, "down", time.Since(b.since), "policy", string(b.policy))
		}
	case to == gobreaker.StateOpen:
		b.down, b.since, b.pause = true, time.Now(), minOpen
		b.said = b.since
		b.healthy.Store(false)
		b.rest()
		b.note("oncemill: the store is down; it is asked now and then until it answers",
			"operation", "claim", "took", b.took, "error", b.cause, "policy", string(b.policy))
	}
}

// sleepUntil waits for d, or until wake is closed, and reports false if ctx ended before, or stopping was closed.
func sleepUntil(ctx context.Context, stopping <-chan struct{}, d time.Duration, wake <-chan struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	case <-stopping:
		return false
	}
}
