package dedupstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An Inspector is a Store whose records people can look at and change.
type Inspector interface {
	Store

	// Look returns the records of keys, in their order. For a key without a record the State is Absent. It changes
	// nothing and may be a little behind, so decide nothing by it.
	Look(ctx context.Context, keys []Key) ([]Record, error)

	// List returns the records that a filter lets through, page by page: after is empty for the first page, then the
	// Next of the page before. Each page looks at a few thousand records at most, so that it holds up nobody; it may
	// therefore be empty although there are more. Like Look it may be a little behind. Records that are there all the
	// time come at least once; one may come twice. They come in no order. For each record that cannot be read there is
	// a [*RecordError] in the error, which comes together with the rest of the page. [Unreadable] tells such an error
	// from others.
	List(ctx context.Context, f Filter, after string) (Page, error)

	// Count counts the records that a filter lets through, in pages as List does, and with such errors. The caller adds
	// them up.
	Count(ctx context.Context, f Filter, after string) (Count, error)

	// Change changes the record that Look or List returned, in one step. It is a [*RefusedError] if somebody holds the
	// key, if the record has changed since it was seen, or if its state does not allow the change.
	Change(ctx context.Context, seen Record, c Change) error

	// NoteDuplicates counts duplicates beside the records of their keys. It is best effort: a lost reply or a crash may
	// leave some out or count them twice. For a key without a record a store may keep nothing.
	NoteDuplicates(ctx context.Context, duplicates []Duplicates) error
}

// A Filter says which records are meant. Each of its fields narrows it; the zero value means all.
type Filter struct {
	Tenant, Group, Handler, ID string // exactly these

	States []State // one of them
	Kinds  []Kind  // that have an outcome, of one of these kinds

	// Reason must occur in the reason of the last failure. Case matters.
	Reason string

	Since, Before time.Time // last claimed at or after Since, and before Before
}

// Matches reports whether a filter lets a record through. Stores may leave out earlier what they know it does not.
func (f *Filter) Matches(r *Record) bool {
	part := func(want, got string) bool { return want == "" || want == got }
	return r.State != Absent && part(f.Tenant, r.Key.Tenant) && part(f.Group, r.Key.Group) &&
		part(f.Handler, r.Key.Handler) && part(f.ID, r.Key.ID) &&
		(len(f.States) == 0 || slices.Contains(f.States, r.State)) &&
		(len(f.Kinds) == 0 || slices.Contains(f.Kinds, r.Outcome.Kind)) &&
		strings.Contains(r.Outcome.Reason, f.Reason) &&
		!r.Claimed.Before(f.Since) && (f.Before.IsZero() || r.Claimed.Before(f.Before))
}

// A Page is a part of a list.
type Page struct {
	Records []Record
	Next    string // where the next page begins; empty: there is none
	Looked  int    // how many records this page looked at
	Total   int    // how many the store has, roughly; 0: not known
}

// A Count is how many records there are, in a part of them.
type Count struct {
	Tallies []Tally
	Next    string // where the next part begins; empty: there is none
	Looked  int    // how many records this part looked at
	Total   int    // how many the store has, roughly; 0: not known
}

// A Tally counts the records of one scope that are in one state.
type Tally struct {
	Tenant, Group, Handler string
	State                  State
	Kind                   Kind // of Finished and Publishing
	Records                int
	Duplicates             int // that came for these records, as far as they were noted
}

// A Change is what an operator makes of a record. It is Forget, Rerun or Complete.
type Change interface{ change() string }

// Forget removes the record, with what was counted beside it. The next delivery of the message runs as a first one: its
// effect may happen again. A record whose lease has ended can be forgotten, too; the claim is lost then. One in
// PUBLISHING cannot: its messages would be lost.
type Forget struct{}

// Rerun lets a message whose outcome is failed or unknown run again when it is delivered next: the record is RETRYABLE
// and due, with its attempts anew. It delivers nothing, and needs no dead letter. After an unknown outcome, or a
// failure outside of an inbox, the effect may happen twice.
type Rerun struct{}

// Complete decides an unknown outcome: it did happen (Succeeded), or it did not and must not be tried again (Failed).
// Duplicates get this outcome from then on. It cannot have produced messages. The record tells it from what a handler
// returned: see Record.ByOperator.
type Complete struct{ Outcome Outcome }

func (Forget) change() string   { return "forgotten" }
func (Rerun) change() string    { return "run again" }
func (Complete) change() string { return "completed" }

// A RefusedError says why a record was not changed.
type RefusedError struct {
	Found Record // as it is
	what  string
	why   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("dedupstore: message %q of %s is not %s: %s", e.Found.Key.ID, e.Found.Key.Scope(), e.what, e.why)
}

// Refuse returns nil if a change may be made of the record that was found, or else an [*InvalidError] or a
// [*RefusedError]. Seen is what the caller decided about, and now is by the store's clock. Stores call it between
// reading the record and writing it, and see to it that nobody writes meanwhile.
func Refuse(c Change, seen, found Record, now time.Time) error {
	if c == nil {
		return invalid("Change", "is nil")
	}
	complete, completes := c.(Complete)
	if completes {
		if err := complete.validate(); err != nil {
			return err
		}
	}
	_, forgets := c.(Forget)
	refuse := func(format string, args ...any) error {
		return &RefusedError{Found: found, what: c.change(), why: fmt.Sprintf(format, args...)}
	}
	holder := cmp.Or(found.Holder, "a process that is not known")
	switch {
	case found.State == Absent:
		return refuse("it has no record: it was never claimed, or has been forgotten")
	case found.State == Running && now.Before(found.Until):
		return refuse("%s is running it, and its lease lasts until %s", holder, found.Until.UTC().Format(time.RFC3339))
	case found.State == Publishing:
		return refuse("its outcome has messages that are not published yet; %s held them last, until %s: the next "+
			"delivery publishes them", holder, found.Until.UTC().Format(time.RFC3339))
	case found.Fence != seen.Fence || found.State != seen.State || found.Outcome.Kind != seen.Outcome.Kind:
		return refuse("it was %s %s under fence %d when you looked, and is %s %s under fence %d now: look again",
			seen.State, seen.Outcome.Kind, seen.Fence, found.State, found.Outcome.Kind, found.Fence)
	case forgets:
		return nil
	case found.State != Finished:
		return refuse("it has no outcome, it is %s", found.State)
	case completes && found.Outcome.Kind != Unknown:
		return refuse("its outcome is known: it %s", found.Outcome.Kind)
	case found.Outcome.Kind == Succeeded:
		return refuse("it succeeded, and a success never runs again; to run it all the same, forget it")
	}
	return nil
}

func (c Complete) validate() error {
	switch o := c.Outcome; {
	case o.Kind != Succeeded && o.Kind != Failed:
		return invalid("Complete.Outcome.Kind", fmt.Sprintf("is %q, want %q or %q", o.Kind, Succeeded, Failed))
	case len(o.Produced) > 0:
		return invalid("Complete.Outcome.Produced", "has messages: publish them by yourself")
	}
	return ValidateSettlement(Finish{Outcome: c.Outcome, Retention: time.Millisecond})
}

// MaxHistory is how many attempts before the last one a record keeps.
const MaxHistory = 4

// A Record is a store's knowledge of a key. Times are by the store's clock, as far as it is known; zero: not known.
type Record struct {
	Key      Key
	State    State
	Started  bool   // Running: the handler has been called, or is about to be
	Fence    uint64 // of the last owner
	Decided  uint64 // the fence under which the outcome was decided; 0: there is none
	Attempts int    // that count, so far
	Returned int    // runs that gave their attempt back
	Reruns   int    // how often it was run again on request, or is about to be
	Crashes  int    // Running, Retryable: runs before the last one, in a row, whose leases expired

	First   time.Time // when the first claim came
	Claimed time.Time // when the last owner got the key
	Ended   time.Time // when its run ended, in an outcome or a release
	Until   time.Time // Running and Publishing: when the lease ends; Retryable: when it is due; zero: it is
	Expires time.Time // when the record is forgotten
	Holder  string    // host and process of the last owner
	Trace   string    // traceparent of the last run

	// History has the attempts before the last one, oldest first, at most MaxHistory.
	History []Attempt

	// Outcome is the result of the processing. A Retryable record has only the Reason of its release here. Messages
	// that are still to be published come without headers and payloads.
	Outcome Outcome

	// ByOperator says of a Finished record that Complete decided its outcome. No handler, and no text of a message, can
	// make that so.
	ByOperator bool

	Duplicates    int       // how many came for the outcome, as far as they were noted
	LastDuplicate time.Time // when the last of them did
}

// An Attempt is a run that another one followed.
type Attempt struct {
	Claimed time.Time
	Ended   time.Time // zero: it did not say; its lease expired
	Holder  string
	Reason  string // of its release or its failure; the beginning of a long one. Empty: its lease expired
}

// Duplicates are copies of a message that came when its outcome was known.
type Duplicates struct {
	Key       Key
	Count     int
	Last      time.Time     // when the last of them came, by the caller's clock
	Retention time.Duration // how long to remember them, at least
}

// Count counts what is on a page, for stores that count by listing.
func (p *Page) Count() Count {
	tallies := map[Tally]*Tally{}
	c := Count{Next: p.Next, Looked: p.Looked, Total: p.Total}
	for i := range p.Records {
		r := &p.Records[i]
		of := Tally{
			Tenant: r.Key.Tenant, Group: r.Key.Group, Handler: r.Key.Handler, State: r.State, Kind: r.Outcome.Kind,
		}
		t := tallies[of]
		if t == nil {
			t = &of
			tallies[of] = t
		}
		t.Records++
		t.Duplicates += r.Duplicates
	}
	for _, t := range tallies {
		c.Tallies = append(c.Tallies, *t)
	}
	return c
}
