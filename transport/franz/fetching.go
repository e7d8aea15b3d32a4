package franz

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// fetching polls, and hands records to the partitions that they are of.
type fetching struct {
	s *session

	mu       sync.Mutex
	draining bool
	// why something was given up in the drain that is settled and not confirmed; nil: nothing was
	unconfirmed error
	ids         map[string][16]byte // of topics that records were fetched of; a broker before Kafka 3.1 tells none
	partitions  map[place]*partition
	ending      map[place]*partition // assignments that were given up while something ran
}

// A place is a partition's name.
type place struct {
	topic     string
	partition int32
}

// poll hands records to their partitions until ctx ends, which it does when the worker fails.
func (f *fetching) poll(ctx, handlers context.Context) {
	for ctx.Err() == nil {
		fetches := f.s.cl.PollFetches(ctx)
		failed := 0
		if ctx.Err() == nil {
			failed = f.take(handlers, fetches)
		}
		f.s.cl.AllowRebalance()
		if failed > 0 && fetches.NumRecords() == 0 {
			pause(ctx.Done(), pauseAfterErrors) // one that stays would be polled without end
		}
	}
}

const pauseAfterErrors = 100 * time.Millisecond

func pause(end <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-end:
	}
}

// take deals with what was fetched, and returns how many partitions failed.
func (f *fetching) take(ctx context.Context, fetches kgo.Fetches) (failed int) {
	f.identify(fetches)
	fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
		if fetched.Err != nil {
			failed++
			f.s.fetchFailed(ctx, fetched.Topic, fetched.Partition, fetched.Err)
		}
		if len(fetched.Records) > 0 {
			if p := f.assigned(ctx, place{fetched.Topic, fetched.Partition}); p != nil {
				p.expect(ctx, fetched)
				p.add(fetched.Records)
			}
		}
	})
	return failed
}

// identify notes which topics records are of.
func (f *fetching) identify(fetches kgo.Fetches) {
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
func (f *fetching) assigned(ctx context.Context, at place) *partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return nil
	}
	if p := f.partitions[at]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p := &partition{
		running: newRunning(ctx), s: f.s, topic: at.topic, number: at.partition, cancel: cancel,
	}
	f.partitions[at] = p
	if before := f.ending[at]; before == nil {
		p.room = f.s.config.room()
	} else {
		p.begin()
		go func() {
			defer p.end()
			<-before.ended
			p.admit(f.s.config.room())
		}()
	}
	return p
}

// owned returns the partitions of an assignment that records were fetched of.
func (f *fetching) owned(assignment map[string][]int32) []*partition {
	return slices.DeleteFunc(f.all(), func(p *partition) bool {
		return !slices.Contains(assignment[p.topic], p.number)
	})
}

// all returns all partitions.
func (f *fetching) all() []*partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.partitions))
}

// forget gives partitions up. The error, if any, says why what is settled in them is not confirmed.
func (f *fetching) forget(partitions []*partition, unconfirmed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining && unconfirmed != nil {
		f.unconfirmed = unconfirmed
	}
	for _, p := range partitions {
		at := place{p.topic, p.number}
		delete(f.partitions, at)
		f.ending[at] = p
		p.forget()
	}
	maps.DeleteFunc(f.ending, func(_ place, p *partition) bool { // those that have ended need not be waited for
		over := closed(p.ended)
		if over {
			p.cancel(nil)
		}
		return over
	})
}

// halt starts nothing more.
func (f *fetching) halt() {
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	for _, p := range f.all() {
		p.halt()
	}
}

// wait waits until nothing runs any more. It is called after halt.
func (f *fetching) wait() {
	f.mu.Lock()
	partitions := slices.AppendSeq(slices.Collect(maps.Values(f.partitions)), maps.Values(f.ending))
	f.mu.Unlock()
	for _, p := range partitions {
		<-p.ended
	}
}
