package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/census"
	"github.com/oncemill/oncemill/internal/operate"
)

// A storeSeen is what the loop knows of a store. Each part is of the last whole pass through the store, or of as much
// as the first pass has seen.
type storeSeen struct {
	Name     string
	Counts   counts
	Failures failing
	Running  working
	Problem  string    // why the last look failed
	At       time.Time // when that was
}

// all reports whether every record was seen.
func (s *storeSeen) all() bool {
	return !s.Counts.Done.IsZero() && !s.Failures.Done.IsZero() && !s.Running.Done.IsZero()
}

// A pass is a way through a store, page by page.
type pass struct {
	Looked, Total int
	Done          time.Time // zero: it goes on
	after         string
}

// Part is how much of the store it has seen, in words. Empty: all.
func (p pass) Part() string {
	switch {
	case !p.Done.IsZero():
		return ""
	case p.Total > 0:
		return number(p.Looked) + " of " + number(max(p.Total, p.Looked)) + " looked at so far"
	default:
		return number(p.Looked) + " looked at so far"
	}
}

// next takes in a page, and reports whether it was the last one.
func (p *pass) next(after string, looked, total int) bool {
	p.after, p.Looked, p.Total = after, p.Looked+looked, total
	if after == "" {
		p.Done = time.Now()
	}
	return after == ""
}

// Counts are records by scope and state.
type counts struct {
	pass
	Scopes []census.Scope
	Sum    census.Scope
}

// States are the sums by state, for a bar.
func (c counts) States() []amount {
	s := c.Sum
	return []amount{
		{"succeeded", "good", "", int64(s.Succeeded)}, {"running", "busy", "", int64(s.Running)},
		{"retryable", "wait", "", int64(s.Retryable)}, {"publishing", "wait", "", int64(s.Publishing)},
		{"failed", "bad", "", int64(s.Failed)}, {"unknown", "doubt", "", int64(s.Unknown)},
	}
}

// Working are records whose handler runs.
type working struct {
	pass
	N      int
	Oldest []dedupstore.Record
}

// Failing are failed and unknown records by reason.
type failing struct {
	pass
	operate.Failures
	Groups   []operate.Group
	Archived int
}

const mostOldest = 10

// A storeScan goes through a store, again and again: three ways side by side, because a filter of the store is cheaper
// than to send all records here.
type storeScan struct {
	name  string
	notes *Notes

	counts  counts
	scopes  census.Scopes
	failing failing
	groups  *operate.Failures // nil: a pass has ended
	working working
	oldest  []dedupstore.Record

	unread  error     // what the last step could not read
	asked   bool      // failures are to be counted soon
	hurried bool      // only failures are counted, for a while
	rested  time.Time // when they may be hurried again; while they are, when that began
	shown   storeSeen
}

func (c *Console) watchStore(ctx context.Context, i int) {
	s := c.config.Stores[i]
	w := &storeScan{name: s.Name, notes: c.config.Notes, shown: storeSeen{Name: s.Name}}
	w.again()
	var first time.Time // that it looked
	for ctx.Err() == nil {
		began := time.Now()
		if !c.idle() {
			if first.IsZero() {
				first = began
			}
			w.shown.Problem = problemOf(w.steps(ctx, s.Inspector, began.Add(c.config.Every/share)))
			w.shown.At = time.Now()
			shown := w.shown
			c.see(func(s *seen) { s.Stores[i] = &shown })
		}
		wait := max(c.config.Every, share*time.Since(began))
		fresh := !w.shown.all() && time.Since(first) < mostFirst
		if (w.hurried || fresh) && w.shown.Problem == "" && !c.idle() {
			wait = 0
		}
		if w.hurried && time.Since(w.rested) > mostHurry { // the rest of it comes as fast as ever
			w.calm()
		}
		for end := time.Now().Add(wait); ctx.Err() == nil; { // who asks meanwhile shortens no rest
			w.asked = pause(ctx, time.Until(end), c.wake[s.Name]) || w.asked
			if w.hurry(); w.hurried || !time.Now().Before(end) {
				break
			}
		}
	}
}

// hurry counts failures without a pause, if somebody has asked for that, and if the last time is long enough ago: so
// nobody who asks all the time makes the server busy, and keeps other figures from being counted.
func (w *storeScan) hurry() {
	if w.asked && !w.hurried && time.Now().After(w.rested) {
		w.asked, w.hurried, w.rested = false, true, time.Now()
		w.failing, w.groups = failing{}, operate.NewFailures(time.Now())
	}
}

const (
	mostHurry = 4 * time.Second  // how long failures are counted without a pause, also if that is not a whole pass
	hurryRest = 50               // then they are not for so many times as long
	mostFirst = 10 * time.Second // how long a store that was never seen as a whole is gone through without a pause
)

// calm ends what hurry began.
func (w *storeScan) calm() {
	if w.hurried {
		w.hurried, w.rested = false, time.Now().Add(hurryRest*time.Since(w.rested))
	}
}

// again begins all ways that have ended.
func (w *storeScan) again() {
	if w.scopes == nil {
		w.counts, w.scopes = counts{}, census.Scopes{}
	}
	if w.groups == nil {
		w.failing, w.groups = failing{}, operate.NewFailures(time.Now())
	}
}

// steps goes on for a while, or until one of the ways has ended.
func (w *storeScan) steps(ctx context.Context, store dedupstore.Inspector, end time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for {
		if ended, err := w.step(ctx, store); ended || err != nil || time.Now().After(end) {
			return err
		}
	}
}

// step looks at a page on each way, and reports whether one of them has ended.
func (w *storeScan) step(ctx context.Context, store dedupstore.Inspector) (ended bool, err error) {
	w.again()
	w.unread = nil
	if err := w.fails(ctx, store); err != nil {
		return false, err
	}
	if w.hurried {
		return false, w.unread
	}
	if err := w.works(ctx, store); err != nil {
		return false, err
	}
	err = w.count(ctx, store)
	return w.groups == nil || w.scopes == nil || w.working.after == "", cmp.Or(err, w.unread)
}

// read reports whether there is a page. Records that cannot be read hide no others.
func (w *storeScan) read(err error) bool {
	_, ok := dedupstore.Unreadable(err)
	if ok {
		w.unread = errors.Join(w.unread, err)
	}
	return ok
}

func (w *storeScan) count(ctx context.Context, store dedupstore.Inspector) error {
	page, err := store.Count(ctx, dedupstore.Filter{}, w.counts.after)
	if !w.read(err) {
		return err
	}
	for _, t := range page.Tallies {
		w.scopes.Add(t)
		w.counts.Sum.Add(t)
	}
	done := w.counts.next(page.Next, page.Looked, page.Total)
	if done || w.shown.Counts.Done.IsZero() {
		w.shown.Counts = w.counts
		w.shown.Counts.Scopes = w.scopes.Sorted()
	}
	if done {
		w.scopes = nil
	}
	return nil
}

func (w *storeScan) works(ctx context.Context, store dedupstore.Inspector) error {
	page, err := store.List(ctx, dedupstore.Filter{States: []dedupstore.State{dedupstore.Running}}, w.working.after)
	if !w.read(err) {
		return err
	}
	w.working.N += len(page.Records)
	w.oldest = append(w.oldest, page.Records...)
	slices.SortFunc(w.oldest, func(a, b dedupstore.Record) int {
		return cmp.Or(a.Claimed.Compare(b.Claimed), strings.Compare(a.Key.String(), b.Key.String()))
	})
	w.oldest = slices.Clone(w.oldest[:min(mostOldest, len(w.oldest))])
	done := w.working.next(page.Next, page.Looked, page.Total)
	if done || w.shown.Running.Done.IsZero() {
		w.shown.Running = w.working
		w.shown.Running.Oldest = w.oldest
	}
	if done {
		w.working, w.oldest = working{}, nil
	}
	return nil
}

var failed = []dedupstore.Kind{dedupstore.Failed, dedupstore.Unknown}

func (w *storeScan) fails(ctx context.Context, store dedupstore.Inspector) error {
	page, err := store.List(ctx, dedupstore.Filter{Kinds: failed}, w.failing.after)
	if !w.read(err) {
		return err
	}
	for i := range page.Records {
		if w.notes.of(w.name, &page.Records[i]) != nil {
			w.failing.Archived++
		} else {
			w.groups.Add(&page.Records[i])
		}
	}
	done := w.failing.next(page.Next, page.Looked, page.Total)
	if done || w.shown.Failures.Done.IsZero() {
		w.shown.Failures = w.failing
		w.shown.Failures.Failures, w.shown.Failures.Groups = *w.groups, w.groups.Sorted()
	}
	if done {
		w.calm()
		w.groups = nil
	}
	return nil
}
