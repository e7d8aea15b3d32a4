package franz

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/worker"
)

// A partition is one assignment of a partition to this worker, from its first record until it is given up. A partition
// that comes back is another one.
type partition struct {
	*running
	s      *session
	topic  string
	number int32
	cancel context.CancelCauseFunc // ends the context of its handlers

	expected int64        // the next offset to be fetched; 0: not known
	gaps     pace.Limiter // of lines about what waits for too long
	order    worker.Order

	mu      sync.Mutex
	queue   []*kgo.Record // fetched, not taken
	paused  bool          // for fetching, because the queue is long
	room    int           // how many more may be taken
	tracker tracker       // of what was taken
}

func (p *partition) name() string { return placeName(p.topic, p.number) }

// expect looks whether records were deleted that should have come first, or come that the group has passed. Only the
// poll loop calls it.
func (p *partition) expect(ctx context.Context, fetched kgo.FetchTopicPartition) {
	first, last := fetched.Records[0].Offset, fetched.Records[len(fetched.Records)-1].Offset
	if p.expected == 0 {
		p.expected = p.s.cl.CommittedOffsets()[p.topic][p.number].Offset
		if first < p.expected {
			p.s.log.ErrorContext(ctx, "franz: the group's offset is beyond what the partition has, which has lost "+
				"records, or the offset was set too far: the partition is consumed from from_offset", "partition",
				p.name(), "group", p.s.group,
				"from_offset", first, "committed", p.expected)
		}
	}
	if start := fetched.LogStartOffset; 0 < p.expected && p.expected < min(start, first) {
		p.s.log.ErrorContext(ctx, "franz: the log has lost its beginning, by retention or by hand, before this "+
			"group read it: those records are not handled", "partition", p.name(), "group", p.s.group,
			"from_offset", p.expected, "to_offset", start)
	}
	p.expected = last + 1
}

// add queues records that were fetched, and has those handled that can be now, and others when something is settled.
func (p *partition) add(records []*kgo.Record) {
	p.mu.Lock()
	if !closed(p.halted) {
		p.queue = append(p.queue, records...)
		p.take()
	}
	p.mu.Unlock()
	p.s.places.fill()
}

// admit lets so many more records be taken.
func (p *partition) admit(more int) {
	p.mu.Lock()
	p.room += more
	p.mu.Unlock()
	p.add(nil)
}

// take takes records from the queue as long as there is room. A long queue pauses fetching. The partition is locked.
func (p *partition) take() {
	for ; p.room > 0 && len(p.queue) > 0; p.room-- {
		rec := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		r := &record{Record: rec, handling: p.s.handling, running: p.running, of: p, entry: entryOf(rec),
			key: p.s.config.orderKey(rec)}
		if back := p.tracker.take(r.entry); back {
			p.s.log.Error(
				"franz: partition went back to an earlier offset: its log has lost records, and offsets are used again",
				"partition", p.name(), "offset", rec.Offset)
		}
		if r.key == "" { // it needs no closure
			p.s.places.add(r)
		} else {
			p.order.Start(r.key, func() { p.s.places.add(r) })
		}
	}
	switch most := p.s.config.MaxInFlight; {
	case !p.paused && len(p.queue) > most:
		p.paused = true
		p.s.cl.PauseFetchPartitions(p.only())
	case p.paused && len(p.queue) <= most/2:
		p.resume()
	}
}

func (p *partition) only() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

func (p *partition) resume() {
	if p.paused {
		p.paused = false
		p.s.cl.ResumeFetchPartitions(p.only())
	}
}

// settle notes that a record is settled, and starts what comes after it.
func (p *partition) settle(r *record) {
	p.mu.Lock()
	p.tracker.settle(r.entry)
	p.order.Done(r.key)
	p.room++
	p.take()
	p.mu.Unlock()
	p.s.places.fill()
}

// halt starts nothing more, and drops what waits. Handlers that run go on.
func (p *partition) halt() {
	p.running.halt()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = nil
	p.s.hurry()
}

// forget makes kgo fetch the partition again should it come back. It is called when it is not fetched any more.
func (p *partition) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume()
}

func (p *partition) due() (kgo.EpochOffset, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.due()
}

func (p *partition) confirm(o kgo.EpochOffset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tracker.confirm(o)
}

// warnOfGap logs that settled records may run again. They cannot be committed while a record before them waits, and the
// guard forgets outcomes after the policy's Window or, for failures, FailureWindow.
func (p *partition) warnOfGap(ctx context.Context) {
	forgets := min(p.s.policy.Window, p.s.policy.FailureWindow)
	p.mu.Lock()
	oldest := p.tracker.gap(forgets / 2)
	p.mu.Unlock()
	if oldest == nil || !p.gaps.Due(sayEvery) {
		return
	}
	p.s.log.ErrorContext(ctx, "franz: record waits for longer than half of the policy's Window or FailureWindow: "+
		"what is settled behind it is not committed, and what was settled longer than that ago runs again after a "+
		"restart or a rebalance",
		"partition", p.name(), "offset", oldest.offset, "waits", time.Since(oldest.taken).Round(time.Second), "window",
		forgets)
}
