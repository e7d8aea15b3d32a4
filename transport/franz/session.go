package franz

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// handling is shared by the runs of both workers: how records in hand are handled.
type handling struct {
	*watching
	policy    oncemill.Policy
	process   process
	hurry     func() // is called when a partition is given up: nothing of it is to wait for more records
	cl        *kgo.Client
	retry     []RetryTopic // nil: there are none
	publisher *Publisher   // to the retry topics, on the same client; nil: there are none
	intake    intake
	places    places
	pool      batch.Pool
	stalled   pace.Limiter // of lines about records that wait
	uncopied  pace.Limiter // of lines about copies that cannot be made
}

func newHandling(once *consumer.Processor, with func(*handling) process, cl *kgo.Client, group string, log *slog.Logger,
	maxInFlight int, retry []RetryTopic) (*handling, error) {
	h := &handling{
		watching: newWatching(group, log), policy: once.Policy(), cl: cl, retry: retry,
		hurry:  func() {},
		places: places{free: maxInFlight},
	}
	h.process = with(h)
	h.intake = intake{
		copies:   func(topic string) bool { return retryIndex(retry, topic) >= 0 },
		consumed: consumed(cl),
		waits:    oncemill.NewWaitLimit(max(1, maxInFlight/2)), // others need the room
	}
	if len(retry) == 0 {
		return h, nil
	}
	var err error
	h.publisher, err = NewPublisher(cl, PublisherConfig{Telemetry: h.policy.Telemetry})
	return h, err
}

// nextRetry returns where the copy of a record of a topic goes.
func (h *handling) nextRetry(topic string) RetryTopic {
	return h.retry[min(retryIndex(h.retry, topic)+1, len(h.retry)-1)]
}

// retryIndex returns which retry topic a topic is, or -1.
func retryIndex(retry []RetryTopic, topic string) int {
	return slices.IndexFunc(retry, func(r RetryTopic) bool { return r.Topic == topic })
}

// A session is one Run: what a worker has while it is a member of a group.
type session struct {
	*handling
	config    Config
	rebalance time.Duration // the rebalance timeout
	look      time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout
	fetching  fetching
	settling  settling
}

func newSession(config Config, h *handling) *session {
	s := &session{handling: h, config: config, rebalance: option[time.Duration](h.cl, kgo.RebalanceTimeout)}
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
	if unconfirmed == nil { // a handler that ignored the grace may have ended since
		unconfirmed = s.finally(detached)
	}
	return s.result(detached, err, unconfirmed,
		"franz: offsets are not confirmed: records are delivered again that are settled")
}
