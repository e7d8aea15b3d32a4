package franz

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
)

// A shareSession is one Run of a ShareWorker.
type shareSession struct {
	watching
	*running // records that have a place, or whose decision is being carried out, and what polls
	config   ShareConfig
	policy   oncemill.Policy
	process  process
	rules    shareRules

	cl        *kgo.Client
	publisher *Publisher // on the same client
	intake    intake
	locks     locks
	inFlight  inFlight
	pool      worker.Pool
	unmoved   limiter // of lines about records that cannot be copied
	proven    bool    // that the client does not settle by itself; only poll looks at it
}

func newShareSession(config ShareConfig, policy oncemill.Policy, process process, cl *kgo.Client, publisher *Publisher,
	rules shareRules) *shareSession {
	w := newWatching(option[string](cl, kgo.ShareGroup), config.Logger)
	return &shareSession{
		watching: w, running: newRunning(),
		config: config, policy: policy, process: process, rules: rules,
		cl: cl, publisher: publisher,
		intake: intake{
			copies:   func(topic string) bool { return topic == config.RetryTopic },
			consumed: consumed(cl),
			waits:    oncemill.NewWaitLimit(max(1, config.MaxInFlight/2)),
		},
		locks: locks{
			cl: cl, group: w.group, log: w.log, fail: w.fail, every: rules.renewal,
			locked: map[*kgo.Record]bool{}, ends: map[place]int64{}, refused: map[place]error{},
			anew: map[string]bool{}, lost: make(chan struct{}, 1),
		},
		inFlight: inFlight{places: places{free: config.MaxInFlight}, most: config.MaxInFlight,
			changed: make(chan struct{}, 1), resting: map[*rest]struct{}{}},
	}
}

// run consumes until ctx ends or the worker cannot go on.
func (s *shareSession) run(ctx context.Context) error {
	detached := telemetry.Spanless(context.WithoutCancel(ctx))
	handlers, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	locking, release := context.WithCancel(detached)
	defer release()
	polling, stop := context.WithCancel(ctx)
	defer stop()

	var helpers sync.WaitGroup
	helpers.Go(func() { s.locks.prolongRegularly(locking) })
	helpers.Go(func() { s.locks.bringBack(polling) })
	helpers.Go(func() { s.sayFull(polling) })
	helpers.Go(func() {
		for polling.Err() == nil {
			pause(polling.Done(), relieveEvery)
			s.relieve(handlers) // of a record that came to wait when nothing more came already
		}
	})
	helpers.Go(func() {
		s.lookOut(polling, s.rules.renewal, s.rules.renewal,
			func(ctx context.Context) error { return hasMembers(ctx, s.cl, s.group) })
	})
	s.begin()
	helpers.Go(func() {
		defer s.end()
		s.poll(polling, handlers)
	})
	err := s.failure(ctx)
	stop()
	s.halt(handlers)
	s.drain(detached, cancel)
	release()
	helpers.Wait()
	s.pool.Wait()
	return s.result(detached, err, s.confirm(detached),
		"franz: acknowledgements are not confirmed: records are delivered again that are settled")
}

// halt starts nothing more, and has everything that waits given back.
func (s *shareSession) halt(ctx context.Context) {
	s.locks.forgive()
	s.running.halt()
	s.inFlight.fill()
	for _, w := range s.inFlight.stopAll(func(*rest) bool { return true }) {
		s.giveBack(ctx, w.record.Record)
		s.inFlight.goOn()
	}
}

// drain waits for what runs.
func (s *shareSession) drain(ctx context.Context, cancel context.CancelCauseFunc) {
	grace := time.NewTimer(s.config.Grace)
	defer grace.Stop()
	select {
	case <-s.ended:
	case <-grace.C:
		s.log.WarnContext(ctx, "franz: handlers take too long for the shutdown and are cancelled", "group", s.group,
			"after", s.config.Grace)
		cancel(errGrace)
		<-s.ended
	}
}

// confirm waits for the broker's answers to all acknowledgements. Beyond the end of a lock none can be a good one.
func (s *shareSession) confirm(ctx context.Context) error {
	if err := s.locks.confirm(ctx, s.rules.lock); err != nil {
		return unconfirmed(s.group, err)
	}
	return nil
}

// poll takes records as long as there is room, until ctx ends, which it does when the worker fails.
func (s *shareSession) poll(ctx, handlers context.Context) {
	for s.inFlight.room(ctx) {
		fetches := s.cl.PollFetches(ctx)
		if failed := s.take(ctx, handlers, fetches); failed && fetches.NumRecords() == 0 {
			pause(ctx.Done(), pauseAfterErrors) // one that stays would be polled without end
		}
	}
}

// take deals with what was fetched, and reports whether something failed. When ctx has ended, records are given back.
func (s *shareSession) take(ctx, handlers context.Context, fetches kgo.Fetches) (failed bool) {
	var records []*kgo.Record
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Err != nil && ctx.Err() == nil {
			failed = true
			s.fetchFailed(handlers, f.Topic, f.Partition, f.Err)
		}
		records = append(records, f.Records...)
	})
	if len(records) == 0 {
		return failed
	}
	if err := s.prove(handlers, records); err != nil {
		s.fail(err)
		return true
	}
	s.locks.add(records)
	s.inFlight.came(len(records))
	s.relieve(handlers)
	s.handle(handlers, records)
	return failed
}

// knowing says that the client cannot be used.
const knowing = "does not leave its records to this worker, and would accept them by itself with its next poll: use " +
	"the version of franz-go that this module asks for, and no hook that replaces the contexts of records with " +
	"others than those made of them"

// prove makes records known to the client that it has handed out without knowing, and first makes sure that it did not.
func (s *shareSession) prove(ctx context.Context, records []*kgo.Record) error {
	s.proven = s.proven || s.locks.unknown(ctx)
	known := s.proven
	for _, rec := range records {
		known = known && show(rec)
	}
	if !known {
		return setupError(theClient, knowing)
	}
	return nil
}

// handle has records handled. Those that have had most of their deliveries come first, and alone: a handler that takes
// the process with it would use up another.
func (s *shareSession) handle(ctx context.Context, records []*kgo.Record) {
	var copying sync.WaitGroup
	stays := make([]bool, len(records))
	for i, rec := range records {
		if stays[i] = !s.worn(rec); !stays[i] {
			copying.Go(func() { stays[i] = !s.carry(ctx, rec) })
		}
	}
	copying.Wait()
	for i, rec := range records {
		if stays[i] {
			r := &shareRecord{Record: rec, s: s, moves: rec.Topic != s.config.RetryTopic && !isDeadLetter(rec)}
			s.inFlight.add(func() bool { return r.start(ctx) })
		}
	}
	s.inFlight.fill()
}

// worn reports whether a record has had more than half of its deliveries.
func (s *shareSession) worn(rec *kgo.Record) bool { return int(rec.DeliveryCount()) > s.rules.limit/2 }

func (s *shareSession) settle(rec *kgo.Record, status kgo.AckStatus) {
	s.locks.settle(rec, status)
	s.inFlight.came(-1)
}
