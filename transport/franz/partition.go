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
	*worker.Assignment
	partitionID
	s        *session
	expected int64        // the next offset to be fetched; 0: not known
	gaps     pace.Limiter // of lines about what waits for too long

	mu      sync.Mutex
	paused  bool    // for fetching, because the queue is long
	tracker tracker // of what was received
}

// expect looks whether records were deleted that should have come first, or come that the group has passed. Only the
// poll loop calls it.
func (p *partition) expect(ctx context.Context, fetched kgo.FetchTopicPartition) {
	first, last := fetched.Records[0].Offset, fetched.Records[len(fetched.Records)-1].Offset
	if p.expected == 0 {
		p.expected = p.s.cl.CommittedOffsets()[p.topic][p.number].Offset
		if first < p.expected {
			p.s.log.ErrorContext(ctx, "franz: the group's offset is beyond what the partition has, which has lost "+
				"records, or the offset was set too far: the partition is consumed from from_offset", "partition",
				p.String(), "group", p.s.group,
				"from_offset", first, "committed", p.expected)
		}
	}
	if start := fetched.LogStartOffset; 0 < p.expected && p.expected < min(start, first) {
		p.s.log.ErrorContext(ctx, "franz: the log has lost its beginning, by retention or by hand, before this "+
			"group read it: those records are not handled", "partition", p.String(), "group", p.s.group,
			"from_offset", p.expected, "to_offset", start)
	}
	p.expected = last + 1
}

// add has records handled that were fetched.
func (p *partition) add(records []*kgo.Record) {
	items := make([]*worker.Item, len(records))
	now := time.Now()
	p.mu.Lock()
	for i, rec := range records {
		r := &record{rec: rec, p: p, entry: entry{offset: rec.Offset, epoch: rec.LeaderEpoch, received: now}}
		r.Message, r.Key = r, p.s.config.orderKey(rec)
		if back := p.tracker.take(&r.entry); back {
			p.s.log.Error(
				"franz: partition went back to an earlier offset: its log has lost records, and offsets are used again",
				"partition", p.String(), "offset", rec.Offset)
		}
		items[i] = &r.Item
	}
	p.mu.Unlock()
	p.Receive(items)
	p.throttle()
}

// settle notes that a record is settled.
func (p *partition) settle(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tracker.settle(e)
}

// throttle pauses fetching while the queue is long. A halted partition has none: should it come back, it is fetched.
func (p *partition) throttle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch queued, most := p.Queued(), p.s.config.MaxInFlight; {
	case !p.paused && queued > most:
		p.paused = true
		p.s.cl.PauseFetchPartitions(p.only())
	case p.paused && queued <= most/2:
		p.paused = false
		p.s.cl.ResumeFetchPartitions(p.only())
	}
}

func (p *partition) only() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

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
		"partition", p.String(), "offset", oldest.offset, "waits", time.Since(oldest.received).Round(time.Second),
		"window", forgets)
}
