package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// Books are what a ledger comes to.
type Books struct {
	Messages, Deliveries, Effects, DeadLetters int

	Extra  map[Why]int    // effects and sendings after the first of their message, by explanation
	Latest map[Why]string // of them
	Faults []Fault        // by message ID
}

// A Fault is what must not be.
type Fault struct {
	ID   string // of the message
	Kind Kind
	What string
}

// A Kind of fault.
type Kind string

// Kinds of faults.
const (
	Missing     Kind = "missing"      // no effect, and no dead letter; or neither acknowledged nor recorded
	Unexplained Kind = "unexplained"  // an effect or a sending after the first that no event explains
	Phantom     Kind = "phantom"      // an effect of a message that nobody asked for
	Unsent      Kind = "unsent"       // in the stream more often than a relay sent it
	Disorder    Kind = "out of order" // its first copy came before that of an earlier message of its key
)

// Balance closes the books. It takes how many deliveries there were.
func (l *Ledger) Balance(deliveries int) Books {
	l.mu.Lock()
	defer l.mu.Unlock()
	copies := map[string]int{}
	for _, id := range l.stream {
		copies[id]++
	}
	for id := range copies {
		l.of(id) // nobody asked for it, if this is new
	}
	b := l.balance(slices.Sorted(maps.Keys(l.accounts)), copies)
	b.Deliveries = deliveries
	b.order(l)
	return b
}

// Close closes the books of some messages and forgets these: if one has an effect later, nobody has asked for it.
func (l *Ledger) Close(ids ...string) Books {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.balance(ids, nil)
	for _, id := range ids {
		delete(l.accounts, id)
	}
	return b
}

// balance closes the books of some messages that have copies in the stream. The caller has locked the ledger.
func (l *Ledger) balance(ids []string, copies map[string]int) Books {
	b := Books{Extra: map[Why]int{}, Latest: map[Why]string{}}
	for _, id := range ids {
		a, events := l.of(id), &evidence{id, l.events, map[int]bool{}}
		if a.Asked {
			b.Messages++
		}
		b.DeadLetters += a.DeadLetters
		switch {
		case l.stream != nil:
			b.sent(id, a, copies[id], sender{l.lease, l.events})
		case a.Wanted != nil || len(a.Rows) > 0:
			b.rows(id, a, events)
		default:
			b.runs(id, a, events)
		}
	}
	return b
}

// Add adds the books of other messages.
func (b *Books) Add(other Books) {
	b.Messages += other.Messages
	b.Deliveries += other.Deliveries
	b.Effects += other.Effects
	b.DeadLetters += other.DeadLetters
	for why, n := range other.Extra {
		b.Extra[why] += n
		b.Latest[why] = other.Latest[why]
	}
	b.Faults = append(b.Faults, other.Faults...)
}

func (b *Books) fault(id string, k Kind, format string, args ...any) {
	b.Faults = append(b.Faults, Fault{id, k, fmt.Sprintf(format, args...)})
}

// again notes an effect after the first.
func (b *Books) again(id string, why Why, what string) {
	if why == "" {
		b.fault(id, Unexplained, "%s", what)
		return
	}
	b.Extra[why]++
	b.Latest[why] = id + ": " + what
}

// expects compares how many effects a message has with what was asked for.
func (b *Books) expects(id string, a *account, effects int) {
	b.Effects += effects
	switch {
	case !a.Asked && effects+a.DeadLetters > 0:
		b.fault(id, Phantom, "%d effects and %d dead letters, and nobody asked for it", effects, a.DeadLetters)
	case !a.Asked:
	case effects+a.DeadLetters == 0:
		b.fault(id, Missing, "it has no effect and no dead letter")
	case !a.Over:
		b.fault(id, Missing, "it was not acknowledged, or the store has no outcome of it")
	}
}

// runs looks at the effects of handlers.
func (b *Books) runs(id string, a *account, events *evidence) {
	var before *Run
	effects := 0
	for _, r := range a.runs {
		if !r.Did() {
			continue
		}
		effects += r.effects()
		if r.effects() > 1 {
			b.fault(id, Unexplained, "%d effects of one run: %+v", r.effects(), *r)
		}
		if before != nil {
			b.again(id, explain(*before, *r, events), fmt.Sprintf("%+v after %+v", *r, *before))
		}
		before = r
	}
	b.expects(id, a, effects)
}

// rows looks at effects that are rows. They are made once, whatever happens, and once more for each time that somebody
// asked for it.
func (b *Books) rows(id string, a *account, events *evidence) {
	if a.Wanted == nil {
		if len(a.Rows)+min(a.DeadLetters, 1) > 1 {
			b.fault(id, Unexplained, "it made %q, and %d dead letters", a.Rows, a.DeadLetters)
		}
		b.expects(id, a, len(a.Rows))
		return
	}
	b.Effects += len(a.Rows)
	more := map[string]int{}
	for _, row := range a.Rows {
		more[row]++
	}
	for _, row := range a.Wanted {
		more[row]--
	}
	for _, row := range slices.Sorted(maps.Keys(more)) {
		n := more[row]
		for n > 0 && events.take(0, time.Time{}, forever, Redriven) != "" {
			b.again(id, Redriven, row)
			n--
		}
		switch {
		case n > 0:
			b.fault(id, Unexplained, "%d more than it was to make of %s", n, row)
		case n < 0:
			b.fault(id, Missing, "%d less than it was to make of %s", -n, row)
		}
	}
}

// sent looks at the sendings of relays, and at the copies in the stream.
func (b *Books) sent(id string, a *account, copies int, s sender) {
	b.Effects += copies
	switch {
	case copies > 0 && !a.Asked:
		b.fault(id, Phantom, "%d times in the stream, and nobody asked for it", copies)
	case copies == 0 && a.Asked:
		b.fault(id, Missing, "it is not in the stream")
	}
	if copies > len(a.Sendings) {
		b.fault(id, Unsent, "%d times in the stream, and sent %d times", copies, len(a.Sendings))
	}
	taken := map[fate]bool{}
	for i := 1; i < len(a.Sendings); i++ {
		why, forbids := s.again(a.Sendings[:i], a.Sendings[i], taken)
		b.again(id, why, fmt.Sprintf("%+v after %+v", a.Sendings[i], forbids))
	}
}

// order looks at the first copies of messages in the stream.
func (b *Books) order(l *Ledger) {
	last, seen := map[string]int64{}, map[string]bool{}
	for _, id := range l.stream {
		p := l.of(id).Place
		if p.N == 0 || seen[id] {
			continue
		}
		seen[id] = true
		if p.N <= last[p.Key] {
			b.fault(id, Disorder, "number %d of key %s came after number %d", p.N, p.Key, last[p.Key])
		}
		last[p.Key] = max(last[p.Key], p.N)
	}
}

// forever is after all events.
var forever = time.Now().AddDate(100, 0, 0)

// Of are the IDs of messages with a kind of fault.
func (b Books) Of(k Kind) (ids []string) {
	for _, f := range b.Faults {
		if f.Kind == k {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// Extras is how many effects there were after the first of their message.
func (b Books) Extras() int {
	n := len(b.Of(Unexplained))
	for _, k := range b.Extra {
		n += k
	}
	return n
}

func (b Books) String() string {
	var why []string
	for _, k := range slices.Sorted(maps.Keys(b.Extra)) {
		why = append(why, fmt.Sprintf("%d because %s", b.Extra[k], k))
	}
	return fmt.Sprintf("%d messages in %d deliveries: %d effects, %d dead letters; extra: %s; %d faults",
		b.Messages, b.Deliveries, b.Effects, b.DeadLetters, cmp.Or(strings.Join(why, ", "), "0"), len(b.Faults))
}

// most is how many faults a test prints.
const most = 50

// MustExplain fails the test for each fault, and for each explanation of extra effects that is not allowed.
func (b Books) MustExplain(t testing.TB, allowed ...Why) {
	t.Helper()
	t.Log(b)
	for i, f := range b.Faults {
		if i == most {
			t.Errorf("%d further faults", len(b.Faults)-most)
			break
		}
		t.Errorf("%s: %s: %s", f.ID, f.Kind, f.What)
	}
	for why, n := range b.Extra {
		if !slices.Contains(allowed, why) {
			t.Errorf("%d extra effects because %s, want none, such as %s", n, why, b.Latest[why])
		}
	}
}
