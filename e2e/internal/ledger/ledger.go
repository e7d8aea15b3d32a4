package ledger

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A Ledger knows what was asked and what happened. It may be used from many goroutines.
//
// As a store it asks the one that it stands before, and notes the answers: see store.go. What that store forgets, the
// ledger knows.
type Ledger struct {
	dedupstore.Store // nil: nothing is claimed in this process

	mu       sync.Mutex
	accounts map[string]*account // by message ID
	events   []Event
	sum      Sum
	failures map[string]Failure
	tally    Tally

	journal *os.File         // see journal.go
	wrong   error            // the first that a write of the journal got
	read    map[string]int64 // how far, by file

	lease  time.Duration // see relay.go
	stream []string      // message IDs
}

// A Sum is what happened to all messages together.
type Sum struct{ Claims, Renewals, Effects, Runs int }

// A Failure is an error that callers got from the store.
type Failure struct {
	Err   error // the first of its text
	Times int
}

// An account is what happened to one message.
type account struct {
	Account
	asked map[string]time.Time // when an owner first asked for a claim
	runs  []*Run
}

// An Account is what is known of a message.
type Account struct {
	Asked       bool // the rig asked for it
	Over        bool // it was acknowledged, or the store has its outcome
	Place       Place
	Owners      int   // that asked for a claim
	Runs        []Run // in the order in which they were granted
	Sendings    []Sending
	DeadLetters int

	// Effects that are rows of a database.
	Rows   []string
	Wanted []string // nil: any one
}

// A Place is where a message stands among those of its key. Numbers grow from 1.
type Place struct {
	Key string
	N   int64
}

// New returns a ledger before a store, which may be nil.
func New(store dedupstore.Store) *Ledger {
	return &Ledger{
		Store: store, accounts: map[string]*account{}, failures: map[string]Failure{}, read: map[string]int64{},
		tally: Tally{},
	}
}

// of is the account of a message. The ledger is locked.
func (l *Ledger) of(id string) *account {
	if l.accounts[id] == nil {
		l.accounts[id] = &account{asked: map[string]time.Time{}}
	}
	return l.accounts[id]
}

// run is the run of a fence, nil if it was not seen. The ledger is locked.
func (a *account) run(fence uint64) *Run {
	for _, r := range a.runs {
		if r.Fence == fence {
			return r
		}
	}
	return nil
}

// with calls a function with the account of a message, locked.
func (l *Ledger) with(id string, f func(a *account)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.of(id))
}

// Ask notes that messages are to have their effect.
func (l *Ledger) Ask(ids ...string) {
	for _, id := range ids {
		l.with(id, func(a *account) { a.Asked = true })
	}
}

// AskInOrder notes a message that must be published after the earlier ones of its key.
func (l *Ledger) AskInOrder(id string, p Place) {
	l.with(id, func(a *account) { a.Asked, a.Place = true, p })
}

// Want notes that a message is to make these rows, beside those of earlier calls, and no others. With no row, it is to
// make none.
func (l *Ledger) Want(id string, rows ...string) {
	l.with(id, func(a *account) { a.Asked, a.Wanted = true, append(append([]string{}, a.Wanted...), rows...) })
}

// Found notes a row that a message has made.
func (l *Ledger) Found(id, row string) {
	l.with(id, func(a *account) { a.Rows = append(a.Rows, row) })
}

// Over notes that a message was acknowledged, or that the store has its outcome.
func (l *Ledger) Over(ids ...string) {
	for _, id := range ids {
		l.with(id, func(a *account) { a.Over = true })
	}
}

// DeadLettered notes dead letters of a message.
func (l *Ledger) DeadLettered(id string, n int) {
	l.with(id, func(a *account) {
		a.DeadLetters += n
		l.write(entry{Run: &Run{ID: id}, DeadLetters: n})
	})
}

// Does notes the effect of a handler.
func (l *Ledger) Does(r oncemill.Run) {
	l.with(r.Key.ID, func(a *account) {
		granted := a.run(r.Fence)
		if granted == nil { // a handler without a claim: no explanation will be found for it
			granted = &Run{Key: r.Key, ID: r.Key.ID, Fence: r.Fence, Attempt: r.Attempt}
			l.add(a, granted)
		}
		granted.Effect = time.Now()
		granted.Effects++
		l.sum.Effects++
		l.write(entry{Run: granted})
	})
}

// Fails notes that a handler is about to fail although it had its effect.
func (l *Ledger) Fails(r oncemill.Run) { l.mark(r, func(r *Run) { r.Failed = true }) }

// Receives notes how often the broker has delivered the message of a run.
func (l *Ledger) Receives(r oncemill.Run, delivery uint64) {
	l.mark(r, func(r *Run) { r.Delivered = max(r.Delivered, delivery) })
}

func (l *Ledger) mark(r oncemill.Run, change func(*Run)) {
	l.with(r.Key.ID, func(a *account) {
		if granted := a.run(r.Fence); granted != nil {
			change(granted)
			l.write(entry{Run: granted})
		}
	})
}

// add adds a run. The ledger is locked.
func (l *Ledger) add(a *account, r *Run) {
	a.runs = append(a.runs, r)
	l.sum.Runs++
}

// Sum returns what happened until now.
func (l *Ledger) Sum() Sum {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum
}

// Done is how many effects there were.
func (l *Ledger) Done() int { return l.Sum().Effects }

// Failures are errors that callers got from the store, by operation and text. ErrClaimLost is an answer, and none.
func (l *Ledger) Failures() map[string]Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.failures)
}

// Message returns what is known of a message.
func (l *Ledger) Message(id string) Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		return a.copied()
	}
	return Account{}
}

func (a *account) copied() Account {
	c := a.Account
	c.Owners = len(a.asked)
	c.Sendings = slices.Clone(a.Sendings)
	for _, r := range a.runs {
		c.Runs = append(c.Runs, *r)
	}
	return c
}

// Finished says whether the message has an outcome that its worker was told, or a dead letter.
func (a Account) Finished() bool {
	return a.DeadLetters > 0 || slices.ContainsFunc(a.Runs, func(r Run) bool { return r.End == Recorded })
}

func (a Account) String() string {
	return fmt.Sprintf("%d asked, %d dead letters, %d runs: %+v", a.Owners, a.DeadLetters, len(a.Runs), a.Runs)
}

// Messages returns what is known of all messages.
func (l *Ledger) Messages() map[string]Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]Account{}
	for id, a := range l.accounts {
		all[id] = a.copied()
	}
	return all
}

// Count is how many runs a function accepts.
func (l *Ledger) Count(accept func(Run) bool) (n int) {
	for r := range l.Runs {
		if accept(r) {
			n++
		}
	}
	return n
}

// Runs yields every run that there was until now.
func (l *Ledger) Runs(yield func(Run) bool) {
	l.mu.Lock()
	var all []Run
	for _, a := range l.accounts {
		for _, r := range a.runs {
			all = append(all, *r)
		}
	}
	l.mu.Unlock()
	for _, r := range all {
		if !yield(r) {
			return
		}
	}
}

// Ended is how many runs ended in a way.
func (l *Ledger) Ended(how End) int { return l.Count(func(r Run) bool { return r.End == how }) }
