package oncemill

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A Policy says how long outcomes are remembered and what happens when things go wrong. The zero value is LowValue.
// Contradictions are errors of NewGuard that name the field.
type Policy struct {
	// Window is how long a success is remembered, from its end: the dedup window. A duplicate that comes later runs
	// again, so it must be longer than any broker, relay or client can retry. Zero: 24 hours.
	Window time.Duration

	// FailureWindow is how long failed and unknown outcomes are remembered. Zero: as Window. In one case a longer one
	// than Window is not kept: a process dies as it begins to publish the dead letter, and no delivery comes within
	// Window.
	FailureWindow time.Duration

	// Lease is how long a claim lives without a heartbeat, which comes every third of it: the time after which a
	// crashed holder's message runs again. At least 100 ms, at most Window, and with redisstore's Config.Replicas more
	// than six times what replicas have to answer. Zero: 30 s.
	Lease time.Duration

	// MaxRun is how long a run may take. Then the handler's context is cancelled with cause ErrMaxRun, and an error
	// that it returns counts as a failed attempt; under a policy that parks the outcome is unknown. A handler that does
	// not heed its context goes on. With or without a limit the log names runs that have been at work for a minute. At
	// least 100 ms. Zero: no limit.
	MaxRun time.Duration

	// MaxAttempts is how many runs a message may have before it fails as exhausted. Crashed runs count. Interrupted
	// runs, as by a shutdown, do not, for as many times: adapters cancel a delivery that takes too long just as they do
	// at a shutdown.
	//
	// With the default backoff ten attempts take about 8 minutes. A longer outage of a service that the handler calls
	// fails every message, unless MaxAttempts is larger or the handler returns Uncounted errors. Zero: 10.
	MaxAttempts int

	// Backoff says how long a failed run waits for its next attempt.
	Backoff Backoff

	// ExpiredLease says what becomes of a run whose lease expired. Zero: Retake.
	ExpiredLease ExpiredLease

	// StoreDown says what to do while the store does not answer. After claims have failed for a tenth of a second, one
	// claim at a time asks for all, at pauses of up to a second. Under FailOpen the others do not wait. Zero:
	// FailClosed.
	StoreDown StoreDown

	// Mismatch says what to do with a known ID that comes with other content. Zero: MismatchReject.
	Mismatch Mismatch

	// MissingID says what a consumer does with a message that has no ID. Zero: MissingIDReject.
	MissingID MissingID

	// MaxResultBytes bounds the result that is kept for duplicates. A longer one is cut, with a marker, and one for
	// which the store has no room (dedupstore.ErrFull) is left out. Over an inbox nothing is left out: a record that it
	// cannot take is a failure for good, without effects. Zero: 64 KiB.
	MaxResultBytes int

	// MaxProducedBytes bounds the produced messages that are kept in the record, payloads and headers together. Larger
	// outputs are published while the run still holds its claim, so that a crash in between runs the handler again.
	// They are never cut. An inbox keeps outputs of any size: they must not be published before the commit. A larger
	// dead letter is left out of the record and made again from the delivery. Zero: 1 MiB.
	MaxProducedBytes int

	// Shadow runs every message unguarded and only counts what a guard would have done, under names of its own:
	// nothing is suppressed, derived, delayed, cancelled or dead-lettered.
	Shadow bool

	// Logger gets what operators must know. Each event that somebody must act on is one line, with the message's ID and
	// the context's trace_id and span_id, and never with payloads. Nil: slog.Default().
	Logger *slog.Logger

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator.
	Telemetry Telemetry
}

// Backoff is an exponential delay with jitter. It is Min after the first attempt and doubles with each further one up
// to Max. Then it is shortened at random by up to a fifth.
type Backoff struct {
	Min time.Duration // zero: 1 s
	Max time.Duration // zero: 5 min; of a relay 1 min
}

// ExpiredLease says what becomes of a started run whose lease expired: its holder is dead, or slow.
type ExpiredLease string

// The values of ExpiredLease.
const (
	Retake ExpiredLease = "retake" // run again: at least once
	Park   ExpiredLease = "park"   // never again: the outcome is unknown, somebody has to look (at most once)
)

// StoreDown says what to do while the store does not answer.
type StoreDown string

// The values of StoreDown.
const (
	FailClosed StoreDown = "closed" // hold the message; the handler does not run
	FailOpen   StoreDown = "open"   // run the handler unguarded; duplicates run too, each is counted as bypassed
)

// Mismatch says what to do with a known ID that comes with other content.
type Mismatch string

// The values of Mismatch.
const (
	MismatchReject Mismatch = "reject" // refuse it; a consumer dead-letters it
	MismatchIgnore Mismatch = "ignore" // do not compare contents
)

// MissingID says what a consumer does with a message that has no ID.
type MissingID string

// The values of MissingID.
const (
	// MissingIDReject refuses it; a consumer dead-letters it.
	MissingIDReject MissingID = "reject"

	// MissingIDBypass runs the handler unguarded, counted as bypassed; an ID that is unusable is rejected all the same.
	// Nobody counts attempts there: errors that are not Permanent are tried again for ever, and FromContext panics.
	MissingIDBypass MissingID = "bypass"
)

// LowValue is for effects whose repetition is a nuisance: 24 hours.
func LowValue() Policy { return Policy{Window: 24 * time.Hour} }

// HighValue is for effects that cost money: 7 days, and failures for as long.
func HighValue() Policy { return Policy{Window: 7 * 24 * time.Hour} }

// Irreversible is for effects that must rather not happen than happen twice. It remembers outcomes for 30 days. Within
// that window it runs a key at most once, while the store keeps its records. docs/guarantees.md says what it does not
// cover.
//
// A run that crashed, was cut off (also by a shutdown) or failed without NoEffect or Permanent is parked as unknown.
// Somebody has to look. The next call for its key, such as a redelivery, parks a run that crashed. If
// nobody repeats a Do, nobody learns of its crash.
func Irreversible() Policy { return Policy{Window: 30 * 24 * time.Hour, ExpiredLease: Park} }

func (p Policy) withDefaults() Policy {
	set(&p.Window, 24*time.Hour)
	set(&p.FailureWindow, p.Window)
	set(&p.Lease, 30*time.Second)
	set(&p.MaxAttempts, 10)
	set(&p.Backoff.Min, time.Second)
	set(&p.Backoff.Max, max(5*time.Minute, p.Backoff.Min))
	set(&p.ExpiredLease, Retake)
	set(&p.StoreDown, FailClosed)
	set(&p.Mismatch, MismatchReject)
	set(&p.MissingID, MissingIDReject)
	set(&p.MaxResultBytes, 64<<10)
	set(&p.MaxProducedBytes, 1<<20)
	if p.Logger == nil {
		p.Logger = slog.Default()
	}
	p.Logger = telemetry.Logger(p.Logger)
	return p
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

const minLease = 100 * time.Millisecond

// validate checks a policy after its defaults were filled in.
func (p Policy) validate() error {
	year := 365 * 24 * time.Hour
	switch {
	case p.Lease < minLease:
		return invalid("Policy.Lease", fmt.Sprintf("is %v, want at least %v", p.Lease, minLease))
	case p.Window < p.Lease:
		return invalid("Policy.Window", fmt.Sprintf("is %v, want at least Policy.Lease (%v)", p.Window, p.Lease))
	case p.FailureWindow < p.Lease:
		return invalid("Policy.FailureWindow",
			fmt.Sprintf("is %v, want at least Policy.Lease (%v)", p.FailureWindow, p.Lease))
	case p.Window > longestWindow || p.FailureWindow > longestWindow:
		return invalid("Policy.Window",
			fmt.Sprintf("and FailureWindow are %v and %v, want at most ten years", p.Window, p.FailureWindow))
	case p.MaxRun != 0 && p.MaxRun < minLease:
		return invalid("Policy.MaxRun", fmt.Sprintf("is %v, want at least %v, or 0 for no limit", p.MaxRun, minLease))
	case p.MaxAttempts < 1:
		return invalid("Policy.MaxAttempts", fmt.Sprintf("is %d, want at least 1", p.MaxAttempts))
	case p.Backoff.Min < 0:
		return invalid("Policy.Backoff.Min", fmt.Sprintf("is %v, want at least 0", p.Backoff.Min))
	case p.Backoff.Max < p.Backoff.Min:
		return invalid("Policy.Backoff.Max",
			fmt.Sprintf("is %v, want at least Policy.Backoff.Min (%v)", p.Backoff.Max, p.Backoff.Min))
	case p.Backoff.Max > year:
		return invalid("Policy.Backoff.Max", fmt.Sprintf("is %v, want at most a year", p.Backoff.Max))
	case p.ExpiredLease != Retake && p.ExpiredLease != Park:
		return invalid("Policy.ExpiredLease", fmt.Sprintf("is %q, want %q or %q", p.ExpiredLease, Retake, Park))
	case p.StoreDown != FailClosed && p.StoreDown != FailOpen:
		return invalid("Policy.StoreDown", fmt.Sprintf("is %q, want %q or %q", p.StoreDown, FailClosed, FailOpen))
	case p.Mismatch != MismatchReject && p.Mismatch != MismatchIgnore:
		return invalid("Policy.Mismatch",
			fmt.Sprintf("is %q, want %q or %q", p.Mismatch, MismatchReject, MismatchIgnore))
	case p.MissingID != MissingIDReject && p.MissingID != MissingIDBypass:
		return invalid("Policy.MissingID",
			fmt.Sprintf("is %q, want %q or %q", p.MissingID, MissingIDReject, MissingIDBypass))
	case p.ExpiredLease == Park && p.StoreDown == FailOpen:
		return invalid("Policy.StoreDown",
			`is "open", which contradicts ExpiredLease "park": at most once needs the store`)
	case p.MaxResultBytes < 1:
		return invalid("Policy.MaxResultBytes", fmt.Sprintf("is %d, want at least 1", p.MaxResultBytes))
	case p.MaxProducedBytes < 1:
		return invalid("Policy.MaxProducedBytes", fmt.Sprintf("is %d, want at least 1", p.MaxProducedBytes))
	}
	return p.Telemetry.validate()
}

// fits checks a policy against the store that it is for. A handler that expects a transaction cannot run without one.
func (p Policy) fits(inbox dedupstore.Transactor) error {
	switch {
	case inbox == nil:
		return nil
	case p.StoreDown == FailOpen:
		return invalid("Policy.StoreDown",
			`is "open", which contradicts an inbox: without its database there is no transaction for the handler`)
	case p.Shadow:
		return invalid("Policy.Shadow",
			"is set, which contradicts an inbox: without a claim there is no transaction for the handler; "+
				"count with the store's leased form")
	case p.MissingID == MissingIDBypass:
		return invalid("Policy.MissingID",
			`is "bypass", which contradicts an inbox: without an ID there is no transaction for the handler`)
	}
	return nil
}

// waits checks that the guard does not give up a claim while the store still waits for others. Such a claim would be
// granted all the same and count as an attempt when its lease ends. Enough of them exhaust a message without a run.
func (p Policy) waits(store dedupstore.Store) error {
	if long, ok := store.(dedupstore.LongLeased); ok && p.Lease < long.LeastLease() {
		return invalid("Policy.Lease", fmt.Sprintf("is %v, want at least %v for this store: it sends what got no "+
			"answer again, and needs time for that", p.Lease, long.LeastLease()))
	}
	waiter, ok := store.(dedupstore.Waiter)
	if !ok || p.Shadow {
		return nil
	}
	if has, wait := operationTimeout(p.Lease), waiter.ClaimWait(); has <= wait {
		return invalid("Policy.Lease", fmt.Sprintf(
			"is %v, so that a claim has %v (a sixth, at most 5s), but the store waits up to %v for replicas: "+
				"lengthen it, or shorten the ReadTimeout of the store's client", p.Lease, has, wait))
	}
	return nil
}

// longestWindow is what every store can keep.
const longestWindow = 10 * 365 * 24 * time.Hour

// delay is how long to wait after the given attempt, counted from 1.
func (b Backoff) delay(attempt int) time.Duration {
	return pace.Jitter(pace.Backoff(b.Min, b.Max, max(attempt, 1)))
}
