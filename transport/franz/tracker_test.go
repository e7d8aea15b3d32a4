package franz

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

func TestTracker_CommitsOnlyWhatIsSettledAndContiguous(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var tr tracker
		var taken []*entry // since the partition last went back
		settled := map[*entry]bool{}
		offset, highest := int64(0), int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"take", "take", "settle", "settle", "confirm", "back"}).Draw(t, "step") {
			case "take":
				offset += rapid.Int64Range(1, 3).Draw(t, "gap") // compaction leaves gaps
				e, back := take(&tr, &kgo.Record{Offset: offset, LeaderEpoch: 7})
				if back {
					t.Fatalf("offset %d is taken for a step back", offset)
				}
				taken = append(taken, e)
			case "settle":
				if len(taken) > 0 {
					if e := rapid.SampledFrom(taken).Draw(t, "entry"); !settled[e] {
						settled[e] = true
						tr.settle(e)
					}
				}
			case "confirm":
				if o, due := tr.due(); due {
					tr.confirm(o)
				}
			case "back":
				if len(taken) > 0 {
					offset = rapid.Int64Range(0, offset).Draw(t, "to")
					late := taken
					e, back := take(&tr, &kgo.Record{Offset: offset, LeaderEpoch: 7})
					if !back {
						t.Fatalf("offset %d is not taken for a step back", offset)
					}
					taken, highest = nil, 0
					for _, old := range late {
						switch {
						case old.offset < offset:
							taken = append(taken, old) // the log has it still
						case !settled[old]:
							tr.settle(old) // a handler that was still running
						}
					}
					taken = append(taken, e)
					if _, due := tr.due(); !due {
						t.Fatal("nothing is due after a step back: a restart would go on where the log ended before")
					}
				}
			}
			open := slices.DeleteFunc(slices.Clone(taken), func(e *entry) bool { return settled[e] })
			if kept := kept(&tr); !slices.Equal(kept, open) || tr.open != len(open) {
				t.Fatalf("%d are kept, counted as %d, of %d that are not settled", len(kept), tr.open, len(open))
			}
			o, due := tr.due()
			if !due {
				continue
			}
			if o.Offset < highest {
				t.Fatalf("offset %d is due after %d", o.Offset, highest)
			}
			highest = o.Offset
			if o.Epoch != 7 {
				t.Fatalf("offset %d is due with epoch %d", o.Offset, o.Epoch)
			}
			for _, e := range taken {
				if e.offset < o.Offset && !settled[e] {
					t.Fatalf("offset %d is due, although %d is not settled", o.Offset, e.offset)
				}
			}
		}
	})
}

func TestTracker_IgnoresConfirmationsFromBeforeAStepBack(t *testing.T) {
	t.Parallel()
	var tr tracker
	e, _ := take(&tr, &kgo.Record{Offset: 99})
	tr.settle(e)
	before, _ := tr.due()
	e, _ = take(&tr, &kgo.Record{Offset: 50})
	tr.settle(e)
	tr.confirm(before)
	if o, due := tr.due(); !due || o.Offset != 51 {
		t.Errorf("due is %v, %v, want 51: a restart at %d would pass over what comes now", o, due, before.Offset)
	}
}

// Under PerKey, records that are still in the log may be open when it has lost its end.
func TestTracker_StepBackPassesOverNothingThatIsOpen(t *testing.T) {
	t.Parallel()
	var tr tracker
	waits, _ := take(&tr, &kgo.Record{Offset: 60, LeaderEpoch: 1})
	take(&tr, &kgo.Record{Offset: 99, LeaderEpoch: 1})
	again, _ := take(&tr, &kgo.Record{Offset: 70, LeaderEpoch: 2})
	tr.settle(again)
	if o, due := tr.due(); !due || o != (kgo.EpochOffset{Epoch: 1, Offset: 60}) {
		t.Errorf("due is %v, %v, want 60, which is not settled", o, due)
	}
	tr.settle(waits)
	if o, due := tr.due(); !due || o != (kgo.EpochOffset{Epoch: 2, Offset: 71}) {
		t.Errorf("due is %v, %v, want 71", o, due)
	}
}

// After an unclean election, new records have the offsets of those that were lost, and are no copies of them.
func TestPosition_OffsetsThatAreUsedAgainAreOthers(t *testing.T) {
	t.Parallel()
	lost, found := &kgo.Record{Partition: 1, Offset: 7, LeaderEpoch: 2}, &kgo.Record{Partition: 1, Offset: 7, LeaderEpoch: 3}
	if at := position(lost); at == position(found) || at != position(&kgo.Record{Partition: 1, Offset: 7, LeaderEpoch: 2}) {
		t.Errorf("position %s of a record that was lost, %s of the one that has its offset now", at, position(found))
	}
}

// kept is what a tracker keeps.
func kept(tr *tracker) (all []*entry) {
	for e := tr.first; e != nil; e = e.behind {
		all = append(all, e)
	}
	return all
}

// A line says that what is settled behind a record is not committed. It is not said where there is nothing.
func TestTracker_AGapHasSomethingBehindIt(t *testing.T) {
	t.Parallel()
	var tr tracker
	oldest, _ := take(&tr, &kgo.Record{Offset: 1})
	between, _ := take(&tr, &kgo.Record{Offset: 2})
	if tr.gap(0) != nil {
		t.Error("a gap with nothing settled behind it")
	}
	newest, _ := take(&tr, &kgo.Record{Offset: 3})
	tr.settle(newest)
	if tr.gap(0) != oldest || tr.gap(1<<63-1) != nil {
		t.Errorf("the gap is %+v, want the oldest that waits for so long", tr.gap(0))
	}
	tr.settle(oldest)
	if tr.gap(0) != between {
		t.Errorf("the gap is %+v, want the next", tr.gap(0))
	}
}

func take(tr *tracker, rec *kgo.Record) (*entry, bool) {
	e := &entry{offset: rec.Offset, epoch: rec.LeaderEpoch}
	return e, tr.take(e)
}

// While a record waits for its retry, for hours perhaps, millions behind it may be settled: nothing of what they carried
// stays in memory.
func TestPartition_WhatIsSettledBehindAGapIsNotKept(t *testing.T) { // not parallel: it collects garbage
	var answers []func(consumer.Decision)
	loop := worker.New(worker.Work{
		Source: func(_ context.Context, _ consumer.Delivery, done func(consumer.Decision)) {
			answers = append(answers, done)
		},
	}, 2)
	session := &session{config: Config{MaxInFlight: 2, Order: PerKey}}
	p := &partition{s: session}
	p.Assignment = loop.Assign(t.Context(), nil, 2, p.throttle)
	large := &kgo.Record{Offset: 2, Value: make([]byte, 1<<10)}
	settled := weak.Make(large)
	p.add([]*kgo.Record{{Offset: 1}, large})
	answers[1](consumer.Decision{Action: consumer.Ack})
	answers[1], large = nil, nil //nolint:ineffassign // this function keeps nothing

	// Another goroutine acknowledges.
	for end := time.Now().Add(time.Minute); settled.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("a settled record stays in memory because of one before it")
		}
	}
	if got, _ := p.due(); got.Offset != 0 {
		t.Errorf("offset %d is due, although the record before it is not settled", got.Offset)
	}
	runtime.KeepAlive(p)
}
