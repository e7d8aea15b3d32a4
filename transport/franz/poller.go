package franz

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/worker"
)

// poller polls, and hands records to the partitions that they are of.
type poller struct {
	s *session

	mu       sync.Mutex
	draining bool
	// why something was given up in the drain that is settled and not confirmed; nil: nothing was
	unconfirmed error
	ids         map[string][16]byte // of topics that records were fetched of; a broker before Kafka 3.1 tells none
	partitions  map[partitionID]*partition
	ending      map[partitionID]*partition // assignments that were given up while something ran
}

// A partitionID names a partition.
type partitionID struct {
	topic  string
	number int32
}

// String is how logs and errors call it.
func (id partitionID) String() string { return fmt.Sprintf("%s/%d", id.topic, id.number) }

// poll hands records to their partitions until ctx ends, which it does when the worker fails.
func (f *poller) poll(ctx, handlers context.Context) {
	for ctx.Err() == nil {
		fetches := f.s.cl.PollFetches(ctx)
		failed := 0
		if ctx.Err() == nil {
			failed = f.take(handlers, fetches)
		}
		f.s.cl.AllowRebalance()
		if failed > 0 && fetches.NumRecords() == 0 {
			pace.Sleep(ctx, pauseAfterErrors) // one that stays would be polled without end
		}
	}
}

const pauseAfterErrors = 100 * time.Millisecond

// take deals with what was fetched, and returns how many partitions failed.
func (f *poller) take(ctx context.Context, fetches kgo.Fetches) (failed int) {
	f.identify(fetches)
	fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
		if fetched.Err != nil {
			failed++
			f.s.fetchFailed(ctx, fetched.Topic, fetched.Partition, fetched.Err)
		}
		if len(fetched.Records) > 0 {
			if p := f.assigned(ctx, partitionID{fetched.Topic, fetched.Partition}); p != nil {
				p.expect(ctx, fetched)
				p.add(fetched.Records)
			}
		}
	})
	return failed
}

// identify notes which topics records are of.
func (f *poller) identify(fetches kgo.Fetches) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fetch := range fetches {
		for _, t := range fetch.Topics {
			if t.TopicID != [16]byte{} {
				f.ids[t.Topic] = t.TopicID
			}
		}
	}
}

// assigned returns the partition of some fetched records. If they are its first, it makes a new one, which starts
// nothing until an earlier assignment has ended. Otherwise a record could be handled twice at once, and out of order.
func (f *poller) assigned(ctx context.Context, id partitionID) *partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return nil
	}
	p := f.partitions[id]
	if p == nil {
		var before *worker.Assignment
		if earlier := f.ending[id]; earlier != nil {
			before = earlier.Assignment
		}
		p = &partition{s: f.s, partitionID: id}
		p.Assignment = f.s.loop.Assign(ctx, before, f.s.config.room(), p.throttle)
		f.partitions[id] = p
	}
	return p
}

// owned returns the partitions of an assignment that records were fetched of.
func (f *poller) owned(assignment map[string][]int32) []*partition {
	return slices.DeleteFunc(f.all(), func(p *partition) bool {
		return !slices.Contains(assignment[p.topic], p.number)
	})
}

// all returns all partitions.
func (f *poller) all() []*partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.partitions))
}

// forget gives partitions up. The error, if any, says why what is settled in them is not confirmed.
func (f *poller) forget(partitions []*partition, unconfirmed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining && unconfirmed != nil {
		f.unconfirmed = unconfirmed
	}
	for _, p := range partitions {
		delete(f.partitions, p.partitionID)
		f.ending[p.partitionID] = p
		p.throttle()
	}
	maps.DeleteFunc(f.ending, func(_ partitionID, p *partition) bool { return p.HasEnded() })
}

// halt starts nothing more.
func (f *poller) halt() {
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	for _, p := range f.all() {
		p.Halt()
	}
}

// wait waits until nothing runs any more. It is called after halt.
func (f *poller) wait() {
	f.mu.Lock()
	partitions := slices.AppendSeq(slices.Collect(maps.Values(f.partitions)), maps.Values(f.ending))
	f.mu.Unlock()
	for _, p := range partitions {
		<-p.Ended()
	}
}
