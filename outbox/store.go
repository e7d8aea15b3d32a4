package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A Store keeps rows and hands them to relays, each row to one at a time.
//
// Errors: any error means that the operation may or may not have been done. The relay asks again, for as long as it
// runs. Operations obey their context.
//
// Concurrency: all methods are safe for concurrent use, by relays of several processes too.
//
// Clock: leases and delays are durations, and begin and end by the store's clock. Each store says whose that is.
type Store interface {
	// Lease hands out rows that are due, the longest due first, and keeps them from others until Settle, or until the
	// lease ends. Due are rows that are neither published nor dead, whose delay is over, and that nobody leases. A row
	// whose lease ended without Settle counts one more unknown attempt, and so is a suspect. No rows: nothing of the
	// kind that was asked for is due.
	//
	// The store must not block writers while rows are leased.
	Lease(ctx context.Context, r LeaseRequest) ([]Row, error)

	// Settle ends a lease: it records the results, and gives back every other row that the token holds, due at once
	// and with nothing counted. All of it happens or nothing. Rows that the token does not hold any more stay as they
	// are, which makes a repeated Settle harmless; a lease that ended still holds until somebody else takes the row.
	Settle(ctx context.Context, token string, results []Result) error

	// Clean removes at most limit rows that were published longer ago than age, and says how many there were.
	Clean(ctx context.Context, age time.Duration, limit int) (int, error)
}

// A Waker is a Store that knows when rows may have been committed in this process.
type Waker interface {
	// Woken receives after such commits. Several may be one signal, some may have none: it saves time, no more.
	Woken() <-chan struct{}
}

// An Inspector is a Store that answers operators.
type Inspector interface {
	// Stats counts. Its cost may grow with the number of pending rows.
	Stats(ctx context.Context) (Stats, error)

	// Dead returns at most limit dead rows, those that died first first.
	Dead(ctx context.Context, limit int) ([]DeadRow, error)

	// Requeue makes the dead rows with these message IDs pending again, due at once and with nothing counted, and says
	// how many there were.
	Requeue(ctx context.Context, ids ...string) (int, error)
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

	// Message is what was written. Its ID is set; its NotBefore is zero, for that time has come.
	Message producer.Message

	Failures int // attempts that were refused
	Unknowns int // attempts without an answer

	// Problem says why the row cannot be read, and so not be published: it becomes dead. Empty: it can.
	Problem string
}

// A Result is what became of a leased row.
type Result struct {
	Number int64
	State  State
	Delay  time.Duration // Failed, Unknown: how long the row is not due
	Error  string        // Failed, Unknown, Dead: why; at most 1 KiB
}

// State is what became of a leased row. The set is closed.
type State string

// What became of a leased row.
const (
	Published State = "published" // acknowledged; the row is kept until Clean
	Removed   State = "removed"   // acknowledged; the row goes at once
	Failed    State = "failed"    // refused: counts a failure, comes again after Delay
	Unknown   State = "unknown"   // no answer: counts an unknown, comes again after Delay
	Dead      State = "dead"      // refused for the last time: counts a failure, is kept until somebody acts
)

// Stats are counts of an outbox.
type Stats struct {
	Pending int           // neither published nor dead; delayed and leased rows included
	Oldest  time.Duration // how long ago the oldest pending row became due for the first time; zero without one
	Dead    int
}

// A DeadRow is a row that was refused for the last time, without its content.
type DeadRow struct {
	ID, Topic string
	Written   time.Time
	Died      time.Time
	Failures  int // attempts that were refused
	Unknowns  int // attempts without an answer
	Error     string
}
