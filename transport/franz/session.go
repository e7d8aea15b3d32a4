package franz

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A session is one Run: what a worker has while it is a member of a group.
type session struct {
	alarm
	config  Config
	policy  oncemill.Policy
	process process

	cl        *kgo.Client
	retry     *Publisher // to the retry topics, on the same client; nil: there are none
	intake    intake
	rebalance time.Duration // the rebalance timeout
	slots     chan struct{} // holds a token for each record that is being handled

	committing sync.Mutex // held from reading what is settled until the broker has answered, and its outcome is noted
	byID       bool       // the broker's last answer to a commit named topics by ID; held with committing
	running    sync.WaitGroup
	look       time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout

	mu       sync.Mutex
	draining bool
	// why something was given up in the drain that is settled and not confirmed; nil: nothing was
	unconfirmed error
	ids         map[string][16]byte // of topics that records were fetched of; a broker before Kafka 3.1 tells none
	partitions  map[place]*partition
	// assignments that were given up while something ran: closed when that has ended
	ending map[place]<-chan struct{}
}

// A place is a partition's name.
type place struct {
	topic     string
	partition int32
}

func newSession(config Config, policy oncemill.Policy, process process, cl *kgo.Client, retry *Publisher) *session {
	a := newAlarm(option[string](cl, kgo.ConsumerGroup), config.Logger)
	return &session{
		alarm:  a,
		config: config, policy: policy, process: unbroken(process, a.log, a.fail),
		cl: cl, retry: retry,
		intake: intake{
			copies:   func(topic string) bool { return config.retryIndex(topic) >= 0 },
			consumed: consumed(cl),
			waits:    oncemill.NewWaitLimit(max(1, config.MaxInFlight/2)), // others need the room
		},
		rebalance:  option[time.Duration](cl, kgo.RebalanceTimeout),
		slots:      make(chan struct{}, config.MaxInFlight),
		ids:        map[string][16]byte{},
		partitions: map[place]*partition{},
		ending:     map[place]<-chan struct{}{},
	}
}

// option returns the value of a client's option.
func option[T any](cl *kgo.Client, opt any) T {
	value, _ := cl.OptValue(opt).(T)
	return value
}

// run consumes until ctx ends or the worker cannot go on.
func (s *session) run(ctx context.Context) error {
	detached := telemetry.Spanless(context.WithoutCancel(ctx))
	handlers, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	polling, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	var helpers sync.WaitGroup
	helpers.Go(func() { s.commitRegularly(polling) })
	helpers.Go(func() {
		patience := option[time.Duration](s.cl, kgo.SessionTimeout)
		s.lookOut(polling, cmp.Or(s.look, patience), patience, membership(s.cl, s.rebalance))
	})
	helpers.Go(func() {
		select {
		case err := <-s.failed:
			stop(err)
		case <-polling.Done():
		}
	})
	helpers.Go(func() { s.poll(polling, handlers) })
	<-polling.Done()
	err := context.Cause(polling)
	if ctx.Err() != nil {
		err = nil
	}
	s.halt()
	switch confirmed := s.drain(detached, cancel); {
	case err == nil:
		err = confirmed
	case confirmed != nil:
		s.log.WarnContext(detached, "franz: offsets are not confirmed: records are delivered again that are settled",
			"group", s.group, "error", confirmed)
	}
	helpers.Wait()
	s.running.Wait()
	return err
}

// poll hands records to their partitions until ctx ends, which it does when the worker fails.
func (s *session) poll(ctx, handlers context.Context) {
	for ctx.Err() == nil {
		fetches := s.cl.PollFetches(ctx)
		failed := 0
		if ctx.Err() == nil {
			failed = s.take(handlers, fetches)
		}
		s.cl.AllowRebalance()
		if failed > 0 && fetches.NumRecords() == 0 {
			pause(ctx, pauseAfterErrors) // one that stays would be polled without end
		}
	}
}

const pauseAfterErrors = 100 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// take deals with what was fetched, and returns how many partitions failed.
func (s *session) take(ctx context.Context, fetches kgo.Fetches) (failed int) {
	s.identify(fetches)
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Err != nil {
			failed++
			s.fetchFailed(ctx, f.Topic, f.Partition, f.Err)
		}
		if len(f.Records) > 0 {
			if p := s.assigned(ctx, place{f.Topic, f.Partition}); p != nil {
				p.expect(ctx, f)
				p.add(f.Records)
			}
		}
	})
	return failed
}

// identify notes which topics records are of.
func (s *session) identify(fetches kgo.Fetches) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			if t.TopicID != [16]byte{} {
				s.ids[t.Topic] = t.TopicID
			}
		}
	}
}

// assigned returns a partition that records were fetched of, and starts it if these are its first.
func (s *session) assigned(ctx context.Context, at place) *partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil
	}
	if p := s.partitions[at]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p := &partition{
		s: s, topic: at.topic, number: at.partition,
		before: s.ending[at],
		more:   make(chan struct{}, 1),
		done:   make(chan struct{}),
		cancel: cancel,
		gate:   newGate(),
	}
	s.partitions[at] = p
	s.running.Go(func() {
		defer cancel(nil)
		p.run(ctx)
	})
	return p
}

// owned returns the partitions of an assignment that records were fetched of.
func (s *session) owned(assignment map[string][]int32) []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*partition
	for topic, numbers := range assignment {
		for _, n := range numbers {
			if p := s.partitions[place{topic, n}]; p != nil {
				found = append(found, p)
			}
		}
	}
	return found
}

// all returns all partitions.
func (s *session) all() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make([]*partition, 0, len(s.partitions))
	for _, p := range s.partitions {
		found = append(found, p)
	}
	return found
}

// forget gives partitions up. The error, if any, says why what is settled in them is not confirmed.
func (s *session) forget(partitions []*partition, unconfirmed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining && unconfirmed != nil {
		s.unconfirmed = unconfirmed
	}
	for _, p := range partitions {
		at := place{p.topic, p.number}
		delete(s.partitions, at)
		s.ending[at] = p.done
		p.resume()
	}
	for at, done := range s.ending { // those that have ended need not be waited for
		select {
		case <-done:
			delete(s.ending, at)
		default:
		}
	}
}

// halt starts nothing more.
func (s *session) halt() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	for _, p := range s.all() {
		p.halt()
	}
}
