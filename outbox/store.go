package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A Store keeps rows and hands them to relays, each row to one at a time.
//
// Errors: after any error, the operation may have been done or not. The relay asks again, as long as it runs.
// Operations obey their context.
//
// Concurrency: all methods are safe for concurrent use, also by several processes.
//
// Clock: leases and delays begin and end by the store's clock. Each store says whose clock that is.
type Store interface {
	// Lease hands out rows that are due, the longest due first, and keeps them from others until Settle or the end of
	// the lease. A row is due when it is neither published nor dead, its delay is over, and nobody leases it. A row
	// whose lease ended without Settle counts one more unknown attempt, which makes it a suspect. If nothing of that
	// kind is due, Lease returns no rows.
	//
	// The store must not block writers while rows are leased.
	//
	// A store may keep the order of rows that have an order key (Row.OrderKey). It then hands out a key's rows in
	// order, to one lease at a time. It hands out none while an earlier row is pending but not due, dead, or a suspect
	// that was not asked for. The store says what frees a key from a dead row.
	Lease(ctx context.Context, r LeaseRequest) ([]Row, error)

	// Settle ends a lease: it records the results, and gives back every other row that the token holds, due at once and
	// with nothing counted. After an error some of this may have happened: a repeated Settle does the rest, because it
	// ignores rows that the token no longer holds. A lease that has ended still holds a row until another one takes it.
	Settle(ctx context.Context, token string, results []Result) error

	// Clean removes at most limit rows that were published longer than age ago, and returns how many.
	Clean(ctx context.Context, age time.Duration, limit int) (int, error)
}

// A Waker is a Store that knows when rows may have been committed in this process.
type Waker interface {
	// Woken receives after such commits. Several may share one signal and some have none: it only saves time.
	Woken() <-chan struct{}
}

// A Named store has a name for metrics; others are called "outbox" there. Outboxes of one process with the same name
// show the highest of their row counts.
type Named interface {
	// Name always returns the same name: the table's, after the schema's if there is one.
	Name() string
}

// An Inspector is a Store that answers operators.
type Inspector interface {
	// Stats counts what relays show in metrics. Its cost may grow with the number of pending and dead rows, but not
	// with that of published ones.
	Stats(ctx context.Context) (Stats, error)

	// List returns the rows that a filter lets through, page by page: after is empty for the first page, then the Next
	// of the page before. A page has a few hundred rows at most and looks at some thousands, so that it holds up
	// nobody; it may be empty although there are more. Rows that stay as they are come once. A row whose state changes
	// meanwhile may come twice or not at all. Dead rows come in the order in which they died, published ones in the
	// order in which they were published.
	List(ctx context.Context, f Filter, after string) (Page, error)

	// Count counts the rows that a filter lets through, in parts as List does. The caller adds them up.
	Count(ctx context.Context, f Filter, after string) (Count, error)

	// Requeue makes dead rows pending again, due at once and with nothing counted, and returns how many. It takes the
	// ID, Topic and Ended of what List has shown, and leaves rows that are not so any more, such as one that was
	// requeued and has died again. An empty Topic stands for all, a zero Ended for any time.
	Requeue(ctx context.Context, dead ...RowInfo) (int, error)

	// Discard removes dead rows for good, and returns how many. It takes the same as Requeue. Rows that waited for them
	// go on. If an earlier attempt got no answer, its copy may have been published, or arrive even now.
	Discard(ctx context.Context, dead ...RowInfo) (int, error)
}

// A Replayer is a Store that can publish its published rows once more while they are kept. This helps after a broker
// lost messages, or for a new consumer.
type Replayer interface {
	// Replay makes published rows pending again, due at once and with nothing counted, in the order in which they were
	// published. It returns how many; fewer than the limit means that there are no more. Copies have the same message
	// ID, the next generation and, other than dead letters, the purpose producer.PurposeReplay: consumers take them for
	// duplicates, brokers do not.
	Replay(ctx context.Context, r ReplayRequest) (int, error)
}

// A ReplayRequest says what to publish once more.
type ReplayRequest struct {
	Since  time.Time // published at or after; zero: since the oldest that is kept
	Before time.Time // published before: the time at which the replay was asked for, so that it ends. Required
	Topic  string    // only of this topic; empty: of all
	IDs    []string  // only these message IDs; nil: all. An empty list is refused: a computed one may be so by mistake
	Limit  int       // the most rows of this call, at least 1

	// Header has headers that a message must have been written with, with the same values; the case of names does not
	// count. Empty: all messages. The message ID is no header here.
	Header producer.Header
}

// A LeaseRequest asks for rows.
type LeaseRequest struct {
	Token string        // names this lease; random, new for each request
	Limit int           // the most rows to hand out, at least 1
	Lease time.Duration // how long they are kept from others

	// Suspects asks for rows with an unknown attempt, and only for them. False: only for rows without one.
	Suspects bool
}

// A Row is a message to be published.
type Row struct {
	// Number names the row in this store while it exists. It says nothing about order.
	Number int64

	// Message is what was written. Its ID is set, and its NotBefore is zero, for that time has come. Its Payload is
	// never nil, which Kafka takes for a tombstone: outboxes do not tell nil from empty.
	Message producer.Message

	// OrderKey names the rows that keep one order. Within a batch, a row is sent only after all earlier rows of its key
	// were acknowledged. Empty: no order.
	OrderKey string

	Failures int // attempts that were refused
	Unknowns int // attempts without an answer

	// Age is the time since the row was written, or first due if that was later, by the store's clock. It is for
	// metrics only. Zero: not known.
	Age time.Duration

	// Problem says why the row cannot be read, and so becomes dead. Empty: it can be read.
	Problem string
}

// A Result is what became of a leased row.
type Result struct {
	Number int64
	State  State
	Delay  time.Duration // Failed, Unknown: how long the row is not due
	Error  string        // Failed, Unknown, Dead: why; at most 1 KiB
}

// State is what became of a leased row, or what a row is. The set is closed.
type State string

// What became of a leased row.
const (
	Published State = "published" // acknowledged; the row is kept until Clean
	Removed   State = "removed"   // acknowledged; the row goes at once
	Failed    State = "failed"    // refused: counts a failure, comes again after Delay
	Unknown   State = "unknown"   // no answer: counts an unknown, comes again after Delay
	Dead      State = "dead"      // refused for the last time: counts a failure, is kept until somebody acts
)

// What a row is that is neither Published nor Dead.
const (
	Pending State = "pending" // due
	Delayed State = "delayed" // due later: its message is delayed, or an attempt was not acknowledged
	Leased  State = "leased"  // in the hands of a relay
)

// Stats are counts of an outbox.
type Stats struct {
	Pending int           // neither published nor dead; delayed and leased rows included
	Oldest  time.Duration // how long ago the oldest pending row became due for the first time; zero without one
	Dead    int
}

// A Filter says which rows are meant. Each of its fields narrows it; the zero value means all.
type Filter struct {
	States    []State   // Pending, Delayed, Leased, Dead or Published: one of these
	Topic, ID string    // exactly these; ID is that of the message
	Since     time.Time // written at or after
	Before    time.Time // written before

	// Header asks for headers. It lets through what the other fields do.
	Header bool
}

// A Page is a part of a list.
type Page struct {
	Rows   []RowInfo
	Next   string // where the next page begins; empty: there is none
	Looked int    // how many rows this page looked at
}

// A RowInfo is what a store knows of a row, without the payload. Times are by the store's clock.
type RowInfo struct {
	ID, Topic, Key string
	Header         producer.Header // nil unless the filter asks; of a replayed row, what its next copy has
	State          State
	Written        time.Time
	Due            time.Time // Pending and Delayed: since when, or when, it is due; else zero
	Ended          time.Time // Dead and Published: since when it is so; else zero
	Failures       int       // attempts that were refused
	Unknowns       int       // attempts without an answer
	Replays        int       // how often it was published once more
	Error          string    // of the last attempt that was not acknowledged
}

// A Count is how many rows there are, in a part of them.
type Count struct {
	Tallies []Tally
	Next    string // where the next part begins; empty: there is none
	Looked  int    // how many rows this part looked at
}

// A Tally counts the rows of a topic that are in one state.
type Tally struct {
	Topic  string
	State  State
	Rows   int
	Oldest time.Duration // Pending, Delayed and Leased: as in Stats; else zero
}

// Validate returns an *dedupstore.InvalidError that names the field that is wrong. Stores call it.
func (f Filter) Validate() error {
	for _, s := range f.States {
		if !slices.Contains([]State{Pending, Delayed, Leased, Dead, Published}, s) {
			return invalid("Filter.States", fmt.Sprintf("has %q, which is the state of no row", s))
		}
	}
	if !f.Before.IsZero() && f.Since.After(f.Before) {
		return invalid("Filter.Since", fmt.Sprintf("is %v, after Before, %v", f.Since, f.Before))
	}
	return nil
}

// Wants reports whether the filter lets rows in one of these states through.
func (f Filter) Wants(states ...State) bool {
	return len(f.States) == 0 || slices.ContainsFunc(states, func(s State) bool { return slices.Contains(f.States, s) })
}

// Validate returns an *dedupstore.InvalidError that names the field that is wrong. Stores call it.
func (r ReplayRequest) Validate() error {
	switch {
	case r.Before.IsZero():
		return invalid("ReplayRequest.Before", "is zero: name the time at which the replay was asked for")
	case r.Since.After(r.Before):
		return invalid("ReplayRequest.Since", fmt.Sprintf("is %v, after Before, %v", r.Since, r.Before))
	case r.IDs != nil && len(r.IDs) == 0:
		return invalid("ReplayRequest.IDs", "is empty: leave it nil to replay all")
	case r.Limit < 1:
		return invalid("ReplayRequest.Limit", fmt.Sprintf("is %d, want at least 1", r.Limit))
	}
	return nil
}
