package franz

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// takenMost bounds the records that a worker holds, waiting ones included, in multiples of MaxInFlight.
const takenMost = 10

// A shareSession is one Run of a ShareWorker.
type shareSession struct {
	*handling
	*running // what its records count as, and what polls
	config   ShareConfig
	rules    shareRules
	locks    locks
	proven   bool          // that the client does not settle by itself; only poll looks at it
	changed  chan struct{} // holds a token when there may be room

	mu      sync.Mutex
	inHand  int // records that are not settled
	waiting int // those of them that wait for their time, which takes no room
}

func newShareSession(config ShareConfig, h *handling, rules shareRules) *shareSession {
	return &shareSession{
		handling: h, config: config, rules: rules, changed: make(chan struct{}, 1),
		locks: locks{
			cl: h.cl, group: h.group, log: h.log, fail: h.fail, every: rules.renewal, locked: map[*kgo.Record]bool{},
		},
	}
}

// run consumes until ctx ends or the worker cannot go on.
func (s *shareSession) run(ctx context.Context) error {
	detached := telemetry.Spanless(context.WithoutCancel(ctx))
	handlers, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	s.running = newRunning(handlers)
	locking, release := context.WithCancel(detached)
	defer release()
	polling, stop := context.WithCancel(ctx)
	defer stop()

	var helpers sync.WaitGroup
	helpers.Go(func() { s.locks.prolongRegularly(locking) })
	helpers.Go(func() { s.watchTopics(polling) })
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
	s.locks.forgive()
	s.halt()
	s.places.fill() // so that those that wait for a place are given back
	s.drain(detached, cancel)
	release()
	helpers.Wait()
	s.pool.Wait()
	// Beyond the end of a lock no answer can be a good one.
	unconfirmed := s.locks.confirm(detached, s.rules.lock)
	return s.result(detached, err, unconfirmed,
		"franz: acknowledgements are not confirmed: records are delivered again that are settled")
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

// poll takes records as long as there is room, until ctx ends, which it does when the worker fails.
func (s *shareSession) poll(ctx, handlers context.Context) {
	var lines pace.Limiter
	for ctx.Err() == nil {
		if room, waiting := s.room(); !room {
			if waiting > 0 && lines.Due(sayEvery) {
				s.log.ErrorContext(ctx, "franz: so many records wait that this member gets no others until some of "+
					"them are settled", "group", s.group, "waiting", waiting)
			}
			select {
			case <-s.changed:
			case <-ctx.Done():
			}
			continue
		}
		fetches := s.cl.PollFetches(ctx)
		if failed := s.take(ctx, handlers, fetches); failed && fetches.NumRecords() == 0 {
			pause(ctx.Done(), pauseAfterErrors) // one that stays would be polled without end
		}
	}
}

// room reports whether there is room for more, and if that is because records wait for their time, how many.
func (s *shareSession) room() (room bool, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch most := s.config.MaxInFlight; {
	case s.inHand-s.waiting >= most:
		return false, 0
	case s.inHand/takenMost >= most: // a product could overflow
		return false, s.waiting
	}
	return true, 0
}

func (s *shareSession) count(inHand, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inHand += inHand
	s.waiting += waiting
	select {
	case s.changed <- struct{}{}:
	default:
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
	s.count(len(records), 0)
	s.handle(handlers, records)
	return failed
}

// knowing says that the client cannot be used.
const knowing = "does not leave its records to this worker, and would accept them by itself with its next poll: use " +
	"the version of franz-go that this module asks for, and no hook that replaces the contexts of records with " +
	"others than those made of them"

// prove tells the client about records that it has handed out without knowing them. First it makes sure that the client
// did not know them.
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

// handle has records handled. Those that have had more than half of their deliveries come first, and alone: a handler
// that takes the process with it would use up another.
func (s *shareSession) handle(ctx context.Context, records []*kgo.Record) {
	var copying sync.WaitGroup
	carried := make([]bool, len(records))
	for i, rec := range records {
		if int(rec.DeliveryCount()) > s.rules.limit/2 {
			copying.Go(func() { carried[i] = s.carry(ctx, rec) })
		}
	}
	copying.Wait()
	for i, rec := range records {
		if !carried[i] {
			r := &record{Record: rec, handling: s.handling, running: s.running, holder: s,
				offers: int(rec.DeliveryCount()) - 1}
			s.places.add(r)
		}
	}
	s.places.fill()
}

// carry copies a record to the retry topic, where it has all its deliveries before it, and settles it when that is
// confirmed. It tries until it can, or the worker stops. It reports false if the topic does not take such a record: no
// other try would change that, and nothing else could begin.
func (s *shareSession) carry(ctx context.Context, rec *kgo.Record) bool {
	log := s.log.With("topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "deliveries",
		rec.DeliveryCount(), "retry_topic", s.config.RetryTopic)
	d, due, _ := s.intake.delivery(rec) // where the error is of use, the record is offered
	for tries := 1; ; tries++ {
		refused, err := s.publisher.forward(ctx, copyOf(rec, d, s.config.RetryTopic, due))
		switch {
		case err == nil:
			log.WarnContext(ctx,
				"franz: record was delivered often without being settled, and goes on as a copy in the retry topic")
			s.acknowledge(rec, kgo.AckAccept)
			return true
		case refused:
			log.ErrorContext(ctx,
				"franz: the retry topic refuses a record that has few deliveries left: it is handled here, and lost "+
					"if process or connection die in each of them; let the topic, and kgo.ProducerBatchMaxBytes, "+
					"take what the source topics do", "error", err)
			return false
		}
		log.ErrorContext(ctx,
			"franz: record that has few deliveries left cannot be copied to the retry topic, nothing more is "+
				"begun", "error", err)
		pause(s.halted, backoff(tries))
		if closed(s.halted) {
			s.release(ctx, rec)
			return true
		}
	}
}

// acknowledge tells the broker what becomes of a record, which leaves the member's hands.
func (s *shareSession) acknowledge(rec *kgo.Record, status kgo.AckStatus) {
	s.locks.settle(rec, status)
	s.count(-1, 0)
}

func (s *shareSession) settle(r *record, rejected bool) {
	status := kgo.AckAccept
	if rejected {
		status = kgo.AckReject
	}
	s.acknowledge(r.Record, status)
	s.places.fill()
}

func (s *shareSession) waits(more int) { s.count(0, more) }

func (s *shareSession) giveBack(ctx context.Context, r *record) { s.release(ctx, r.Record) }

// release has a record delivered again, to any member.
func (s *shareSession) release(ctx context.Context, rec *kgo.Record) {
	if int(rec.DeliveryCount()) >= s.rules.limit {
		s.log.ErrorContext(ctx,
			"franz: record is lost: it has used up its deliveries, and could not be copied to the retry topic before "+
				"the shutdown", "topic", rec.Topic, "partition", rec.Partition,
			"offset", rec.Offset, "deliveries", rec.DeliveryCount(), "retry_topic", s.config.RetryTopic)
	}
	s.acknowledge(rec, kgo.AckRelease)
}

// errNoBrokerZero ends a run that kgo (1.22.2) would leave without a partition, without a log line. A broker that
// refuses an acknowledgement names no leader, which it writes as broker 0, and kgo looks for the partition there.
// Broker 0, if there is one, knows the leader. Try without this when kgo is raised.
var errNoBrokerZero = errors.New("franz: a lock was lost, and no broker has the number 0, where the client looks for " +
	"the partition now: start the process again")

// watchTopics looks, until ctx ends, for trouble that kgo (1.22.2) tells nobody, and then ends the run. That is the
// case of errNoBrokerZero, a topic without the right to read it, or a topic that was made again. Kafka 4.3 answers a
// fetch that names the old topic with an error of the whole, so other topics bring nothing either.
func (s *shareSession) watchTopics(ctx context.Context) {
	consumed := map[string]kadm.TopicID{}
	tick := time.NewTicker(s.rules.renewal)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.lookAtTopics(ctx, consumed)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (s *shareSession) lookAtTopics(ctx context.Context, consumed map[string]kadm.TopicID) {
	ctx, cancel := context.WithTimeout(ctx, s.rules.renewal)
	defer cancel()
	found, err := describe(ctx, s.cl, s.cl.GetConsumeTopics()...)
	if err != nil {
		return // the next look may find it
	}
	isZero := func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == 0 }
	if s.locks.hasLost() && !slices.ContainsFunc(found.Brokers, isZero) {
		s.fail(errNoBrokerZero)
	}
	for _, topic := range found.Topics {
		if topic.ErrorCode != 0 || topic.Topic == nil {
			continue
		}
		name, id := *topic.Topic, kadm.TopicID(topic.TopicID)
		if !allows(topic, kmsg.ACLOperationRead) {
			s.fail(refusal(s.group, name, kerr.TopicAuthorizationFailed))
		}
		if before, known := consumed[name]; known && before != id {
			s.fail(setupError(theTopic(name), "was deleted and made again: start the process again to consume it"))
		}
		consumed[name] = id
	}
}
