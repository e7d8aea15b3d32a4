package franz

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A tracker knows up to where the records of a partition are settled. It keeps only open records, because millions may
// be settled while one waits. The zero value is ready to use. A tracker is not safe for concurrent use.
type tracker struct {
	first, last *entry          // of the open ones, by offset
	open, taken int             // how many are open, and how many were taken
	end         kgo.EpochOffset // behind the newest that was taken

	settled   kgo.EpochOffset // up to where everything is settled; meaningless while zero
	committed int64           // the offset that the broker confirmed; 0: none; -1: a wrong one
}

// An entry is a record that was taken. It is open until it is settled, or its log has lost it.
type entry struct {
	offset   int64
	epoch    int32
	received time.Time

	open           bool
	taken          int    // how many were taken before
	before, behind *entry // the next open ones
}

// take adds the entry of the next record. It reports whether the partition went back: the broker has lost the end of
// its log, and now other records come under offsets that were used before. Then settling starts anew from here, or from
// an earlier record that is not settled. That is due at once, because a restart would go on where the log ended before.
func (t *tracker) take(e *entry) (back bool) {
	back = e.offset < t.end.Offset
	for back && t.last != nil && t.last.offset >= e.offset {
		t.remove(t.last)
	}
	e.open, e.taken, e.before = true, t.taken, t.last
	if t.last == nil {
		t.first = e
	} else {
		t.last.behind = e
	}
	t.last, t.end = e, kgo.EpochOffset{Epoch: e.epoch, Offset: e.offset + 1}
	t.open++
	t.taken++
	if back {
		t.settled, t.committed = t.next(), -1
	}
	return back
}

// settle marks a record as settled.
func (t *tracker) settle(e *entry) {
	if !e.open {
		return // the log has lost it
	}
	oldest := e == t.first
	t.remove(e)
	if oldest {
		t.settled = t.next()
	}
}

// remove takes an entry out of the open ones.
func (t *tracker) remove(e *entry) {
	if e.before == nil {
		t.first = e.behind
	} else {
		e.before.behind = e.behind
	}
	if e.behind == nil {
		t.last = e.before
	} else {
		e.behind.before = e.before
	}
	e.open, e.before, e.behind = false, nil, nil
	t.open--
}

// next is the offset of the oldest open record, or of the next that comes.
func (t *tracker) next() kgo.EpochOffset {
	if t.first == nil {
		return t.end
	}
	return kgo.EpochOffset{Epoch: t.first.epoch, Offset: t.first.offset}
}

// gap returns the oldest record that is not settled, if it was taken so long ago and something behind it is settled; or
// nil.
func (t *tracker) gap(old time.Duration) *entry {
	if e := t.first; e != nil && t.taken-e.taken > t.open && time.Since(e.received) > old {
		return e
	}
	return nil
}

// due returns the offset to commit, if there is one.
func (t *tracker) due() (kgo.EpochOffset, bool) {
	return t.settled, t.settled.Offset > t.committed
}

// confirm remembers what the broker confirmed.
func (t *tracker) confirm(o kgo.EpochOffset) {
	if o.Offset <= t.settled.Offset { // else the partition went back meanwhile
		t.committed = max(t.committed, o.Offset)
	}
}
