package franz

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
)

// A session is one Run: what a worker has while it is a member of a group.
type session struct {
	watching
	config  Config
	policy  oncemill.Policy
	process process

	cl        *kgo.Client
	retry     *Publisher // to the retry topics, on the same client; nil: there are none
	intake    intake
	rebalance time.Duration // the rebalance timeout
	look      time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout

	fetching fetching
	inFlight places
	pool     worker.Pool
	settling settling
}

func newSession(config Config, policy oncemill.Policy, process process, cl *kgo.Client, retry *Publisher) *session {
	s := &session{
		watching: newWatching(option[string](cl, kgo.ConsumerGroup), config.Logger),
		config:   config, policy: policy, process: process,
		cl: cl, retry: retry,
		intake: intake{
			copies:   func(topic string) bool { return config.retryIndex(topic) >= 0 },
			consumed: consumed(cl),
			waits:    oncemill.NewWaitLimit(max(1, config.MaxInFlight/2)), // others need the room
		},
		rebalance: option[time.Duration](cl, kgo.RebalanceTimeout),
		inFlight:  places{free: config.MaxInFlight},
	}
	s.fetching = fetching{s: s, ids: map[string][16]byte{}, partitions: map[place]*partition{},
		ending: map[place]*partition{}}
	s.settling.s = s
	return s
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
	polling, stop := context.WithCancel(ctx)
	defer stop()

	var helpers sync.WaitGroup
	helpers.Go(func() { s.settling.regularly(polling) })
	helpers.Go(func() {
		timeout := option[time.Duration](s.cl, kgo.SessionTimeout)
		s.lookOut(polling, cmp.Or(s.look, timeout), timeout, membership(s.cl, s.rebalance))
	})
	helpers.Go(func() { s.fetching.poll(polling, handlers) })
	err := s.failure(ctx)
	stop()
	s.fetching.halt()
	unconfirmed := s.drain(detached, cancel)
	helpers.Wait()
	s.fetching.wait()
	s.pool.Wait()
	return s.result(detached, err, unconfirmed,
		"franz: offsets are not confirmed: records are delivered again that are settled")
}
