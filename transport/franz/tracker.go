package franz

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A tracker knows up to where the records of a partition are settled. The zero value is a partition of which nothing
// was taken. It is not safe for concurrent use.
type tracker struct {
	open []*entry // received and not settled, or behind one that is not, by offset
	last *entry   // the newest that was taken

	settled   kgo.EpochOffset // up to where everything is settled; meaningless while zero
	committed int64           // the offset that the broker confirmed; 0: none; -1: a wrong one
}

// An entry is a record that was received.
type entry struct {
	offset   int64
	epoch    int32
	settled  bool
	received time.Time
}

// take adds the entry of the next record. It reports whether the partition went back: the broker has lost the end of
// its log, and now other records come under offsets that were used before. Then settling starts anew from here, or from
// an earlier record that is not settled. That is due at once, because a restart would go on where the log ended before.
func (t *tracker) take(e *entry) (back bool) {
	if back = t.last != nil && e.offset <= t.last.offset; back {
		*t = tracker{open: slices.DeleteFunc(t.open, func(old *entry) bool { return old.offset >= e.offset }),
			committed: -1}
	}
	t.last = e
	t.open = append(t.open, e)
	if back {
		t.settled = kgo.EpochOffset{Epoch: t.open[0].epoch, Offset: t.open[0].offset}
	}
	return back
}

// settle marks a record as settled.
func (t *tracker) settle(e *entry) {
	e.settled = true
	done := 0
	for done < len(t.open) && t.open[done].settled {
		t.settled = kgo.EpochOffset{Epoch: t.open[done].epoch, Offset: t.open[done].offset + 1}
		done++
	}
	clear(t.open[:done])
	t.open = t.open[done:]
}

// gap returns the oldest record that is not settled, if it was taken so long ago and something behind it is settled; or
// nil.
func (t *tracker) gap(old time.Duration) *entry {
	if len(t.open) == 0 || time.Since(t.open[0].received) <= old ||
		!slices.ContainsFunc(t.open, func(e *entry) bool { return e.settled }) {
		return nil
	}
	return t.open[0]
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
