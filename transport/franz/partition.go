package franz

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/lanes"
)

// A partition is one assignment of a partition to this worker, from its first record until it is given up. A partition
// that comes back is another one.
type partition struct {
	s      *session
	topic  string
	number int32

	before <-chan struct{} // closed when an earlier assignment has ended; nil: there was none
	more   chan struct{}   // holds a token when the queue may have become longer
	done   chan struct{}   // closed when nothing runs any more
	cancel context.CancelCauseFunc

	expected int64   // the next offset to be fetched; 0: not known
	gaps     limiter // of lines about what waits for too long

	gate                  // its lock is the partition's
	queue   []*kgo.Record // fetched, not taken
	paused  bool          // for fetching, because the queue is long
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
		p.s.log.ErrorContext(ctx, "franz: the log has lost its beginning, by retention or by hand, before this group "+
			"was there: what records it had are not handled", "partition", p.name(), "group", p.s.group,
			"from_offset", p.expected, "to_offset", start)
	}
	p.expected = last + 1
}

// add queues records that were fetched. A long queue pauses fetching.
func (p *partition) add(records []*kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isHalted() {
		return
	}
	p.queue = append(p.queue, records...)
	if !p.paused && len(p.queue) > p.s.config.MaxInFlight {
		p.paused = true
		p.s.cl.PauseFetchPartitions(p.only())
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *partition) only() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

// next takes the next record. It waits for one, and returns nil when the partition is halted.
func (p *partition) next(ctx context.Context) (*kgo.Record, *entry) {
	for {
		if rec, e := p.pop(ctx); rec != nil {
			return rec, e
		}
		select {
		case <-p.more:
		case <-p.halted:
			return nil, nil
		}
	}
}

func (p *partition) pop(ctx context.Context) (*kgo.Record, *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 || p.isHalted() {
		return nil, nil
	}
	rec := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	if p.paused && len(p.queue) <= p.s.config.MaxInFlight/2 {
		p.paused = false
		p.s.cl.ResumeFetchPartitions(p.only())
	}
	e, back := p.tracker.take(rec)
	if back {
		p.s.log.ErrorContext(ctx,
			"franz: partition went back to an earlier offset: its log has lost records, and offsets are used again",
			"partition", p.name(), "offset", rec.Offset)
	}
	return rec, e
}

// run handles the records of the partition until it is halted. The context is that of its handlers.
func (p *partition) run(ctx context.Context) {
	defer close(p.done)
	if p.before != nil {
		select {
		case <-p.before: // else one record could be handled twice at once, and out of order
		case <-p.halted:
			<-p.before
			return
		}
	}
	if p.s.config.Order == PerKey {
		p.runLanes(ctx)
		return
	}
	for {
		rec, e := p.next(ctx)
		if rec == nil {
			return
		}
		p.handle(ctx, rec, e)
	}
}

// runLanes handles records with different keys at once.
func (p *partition) runLanes(ctx context.Context) {
	var set lanes.Set
	defer set.Wait()
	room := make(chan struct{}, p.s.config.MaxInFlight)
	for {
		select {
		case room <- struct{}{}:
		case <-p.halted:
			return
		}
		rec, e := p.next(ctx)
		if rec == nil {
			return
		}
		set.Go(lane(rec), func() {
			defer func() { <-room }()
			p.handle(ctx, rec, e)
		})
	}
}

// lane is what records have in common that are handled in order. An empty key is a key.
func lane(rec *kgo.Record) string {
	if rec.Key == nil {
		return ""
	}
	return "k" + string(rec.Key)
}

// handle offers a record until it is settled or the partition is halted.
func (p *partition) handle(ctx context.Context, rec *kgo.Record, e *entry) {
	d, due, err := p.s.intake.delivery(rec)
	if err != nil {
		p.s.fail(err)
		return
	}
	p.s.postponed(ctx, d, rec, due)
	if !p.waitFor(due) {
		return
	}
	for tries := 1; ; tries++ {
		d.Count = tries
		decision, offered := p.offer(ctx, p.s.slots, p.s.process, d, rec)
		if !offered {
			return
		}
		settled, delay := p.conclude(ctx, d, rec, decision, tries)
		if settled {
			p.settle(e)
			return
		}
		if !p.wait(delay) {
			return
		}
	}
}

// halt starts nothing more, and drops what waits. Handlers that run go on.
func (p *partition) halt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isHalted() {
		return
	}
	p.shut()
	p.queue = nil
}

// resume makes kgo fetch the partition again should it come back. It is called when the partition is not fetched any
// more.
func (p *partition) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		p.paused = false
		p.s.cl.ResumeFetchPartitions(p.only())
	}
}

func (p *partition) settle(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tracker.settle(e)
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

// warnOfGap says that what is settled may run again: it cannot be committed while a record before it waits, and the
// guard forgets outcomes when the policy's Window or, for failures, FailureWindow is over.
func (p *partition) warnOfGap(ctx context.Context) {
	forgets := min(p.s.policy.Window, p.s.policy.FailureWindow)
	p.mu.Lock()
	oldest := p.tracker.gap(forgets / 2)
	p.mu.Unlock()
	if oldest == nil || !p.gaps.due(sayEvery) {
		return
	}
	p.s.log.ErrorContext(ctx, "franz: record waits for longer than half of the policy's Window or FailureWindow: "+
		"what is settled behind it is not committed, and what was settled longer than that ago runs again after a "+
		"restart or a rebalance",
		"partition", p.name(), "offset", oldest.offset, "waits", time.Since(oldest.taken).Round(time.Second), "window",
		forgets)
}
