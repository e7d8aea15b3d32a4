package franz

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A shareSession is one Run of a ShareWorker.
type shareSession struct {
	alarm
	gate
	config  ShareConfig
	policy  oncemill.Policy
	process process
	rules   shareRules

	cl        *kgo.Client
	publisher *Publisher // on the same client
	intake    intake
	slots     chan struct{} // holds a token for each record that is being handled
	locks     locks
	inFlight  inFlight
	unmoved   limiter // of lines about records that cannot be copied
	proven    bool    // that the client does not settle by itself; only poll looks at it
	running   sync.WaitGroup
}

func newShareSession(config ShareConfig, policy oncemill.Policy, process process, cl *kgo.Client, publisher *Publisher,
	rules shareRules) *shareSession {
	a := newAlarm(option[string](cl, kgo.ShareGroup), config.Logger)
	return &shareSession{
		alarm: a, gate: newGate(),
		config: config, policy: policy, process: unbroken(process, a.log, a.fail), rules: rules,
		cl: cl, publisher: publisher,
		intake: intake{
			copies:   func(topic string) bool { return topic == config.RetryTopic },
			consumed: consumed(cl),
			waits:    oncemill.NewWaitLimit(max(1, config.MaxInFlight/2)),
		},
		slots: make(chan struct{}, config.MaxInFlight),
		locks: locks{
			cl: cl, group: a.group, log: a.log, fail: a.fail, every: rules.renewal,
			held: map[*kgo.Record]bool{}, ends: map[place]int64{}, refused: map[place]error{},
			anew: map[string]bool{}, lost: make(chan struct{}, 1),
		},
		inFlight: inFlight{window: config.MaxInFlight, changed: make(chan struct{}, 1),
			resting: map[*kgo.Record]chan struct{}{}},
	}
}

// run consumes until ctx ends or the worker cannot go on.
func (s *shareSession) run(ctx context.Context) error {
	detached := telemetry.Spanless(context.WithoutCancel(ctx))
	handlers, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	holding, release := context.WithCancel(detached)
	defer release()
	polling, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	var helpers sync.WaitGroup
	helpers.Go(func() { s.locks.prolongRegularly(holding) })
	helpers.Go(func() { s.locks.bringBack(polling) })
	helpers.Go(func() { s.sayFull(polling) })
	helpers.Go(func() {
		for s.wait(relieveEvery) {
			s.relieve() // of a record that came to wait when nothing more came already
		}
	})
	helpers.Go(func() {
		s.lookOut(polling, s.rules.renewal, s.rules.renewal,
			func(ctx context.Context) error { return hasMembers(ctx, s.cl, s.group) })
	})
	helpers.Go(func() {
		select {
		case err := <-s.failed:
			stop(err)
		case <-polling.Done():
		}
	})
	s.running.Go(func() { s.poll(polling, handlers) })
	<-polling.Done()
	err := context.Cause(polling)
	if ctx.Err() != nil {
		err = nil
	}
	s.halt()
	s.drain(detached, cancel)
	release()
	helpers.Wait()
	switch confirmed := s.confirm(detached); {
	case err == nil:
		err = confirmed
	case confirmed != nil:
		s.log.WarnContext(detached,
			"franz: acknowledgements are not confirmed: records are delivered again that are "+
				"settled", "group", s.group, "error", confirmed)
	}
	return err
}

// halt starts nothing more, and has everything that waits given back.
func (s *shareSession) halt() {
	s.locks.forgive()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut()
}

// drain waits for what runs.
func (s *shareSession) drain(ctx context.Context, cancel context.CancelCauseFunc) {
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	grace := time.NewTimer(s.config.Grace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		s.log.WarnContext(ctx, "franz: handlers take too long for the shutdown and are cancelled", "group", s.group,
			"after", s.config.Grace)
		cancel(errGrace)
		<-ended
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
			pause(ctx, pauseAfterErrors) // one that stays would be polled without end
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
	s.inFlight.add(len(records))
	s.relieve()
	s.start(handlers, records)
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

// start has records handled. Those that have had most of their deliveries come first, and alone: a handler that takes
// the process with it would use up another.
func (s *shareSession) start(ctx context.Context, records []*kgo.Record) {
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
			s.running.Go(func() { s.handle(ctx, rec) })
		}
	}
}

// worn reports whether a record has had more than half of its deliveries.
func (s *shareSession) worn(rec *kgo.Record) bool { return int(rec.DeliveryCount()) > s.rules.limit/2 }

// handle offers a record until it is settled or the worker stops.
func (s *shareSession) handle(ctx context.Context, rec *kgo.Record) {
	d, due, err := s.intake.delivery(rec)
	if err != nil {
		s.fail(err)
		s.giveBack(ctx, rec)
		return
	}
	var stays bool
	if !s.rest(ctx, rec, due, &stays) {
		return
	}
	moves := rec.Topic != s.config.RetryTopic && !isDeadLetter(rec) // until the retry topic refuses it
	for tries := 1; ; tries++ {
		d.Count = int(rec.DeliveryCount()) - 1 + tries
		decision, offered := s.offer(ctx, s.slots, s.process, d, rec)
		if !offered {
			s.giveBack(ctx, rec)
			return
		}
		switch decision.Action {
		case consumer.Ack:
			s.settle(rec, kgo.AckAccept)
			return
		case consumer.Reject:
			s.log.ErrorContext(telemetry.Located(ctx, d.Header),
				"franz: record rejected: nobody has it as a dead "+
					"letter", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset,
				"id", decision.ID, "error", decision.Err)
			s.settle(rec, kgo.AckReject)
			return
		}
		s.stalled(ctx, d, rec, decision, tries)
		retry, failed := decision.Err.(*oncemill.RetryError) //nolint:errorlint // the guard's own error
		now := &stays
		if failed && !retry.Uncounted {
			now = &moves
		}
		if !s.rest(ctx, rec, time.Now().Add(delayOf(decision, s.policy, tries)), now) {
			return
		}
	}
}

// rest lets a record wait until it is due, which takes no room. It reports false if the record is settled then: given
// back, as the worker stops, or gone on as a copy, if it moves, as too many have come after it. Records move whose own
// attempt failed: where a store or what handlers call is away, others would have to wait as well. Those of the retry
// topic stay in any case, or the copies would go round, so do dead letters, as copies would not say of what they are,
// and what the retry topic has refused.
func (s *shareSession) rest(ctx context.Context, rec *kgo.Record, due time.Time, moves *bool) bool {
	if time.Until(due) > 0 {
		passed := s.inFlight.rest(rec, *moves)
		defer s.inFlight.goOn(rec)
		for d := time.Until(due); d > 0 && !s.isHalted(); d = time.Until(due) {
			t := time.NewTimer(min(d, lookAgain))
			select {
			case <-t.C:
			case <-s.halted:
			case <-passed:
				moved, refused := s.moveOn(ctx, rec, due)
				switch {
				case moved:
					t.Stop()
					return false
				case refused: // another try would hold up those that publish beside it
					*moves, passed = false, nil
				default: // each poll would try again
					s.wait(min(time.Until(due), maxDelay))
				}
			}
			t.Stop()
		}
	}
	if s.isHalted() {
		s.giveBack(ctx, rec)
		return false
	}
	return true
}

func (s *shareSession) settle(rec *kgo.Record, status kgo.AckStatus) {
	s.locks.settle(rec, status)
	s.inFlight.add(-1)
}

// giveBack has a record delivered again, to whoever comes first.
func (s *shareSession) giveBack(ctx context.Context, rec *kgo.Record) {
	if int(rec.DeliveryCount()) >= s.rules.limit {
		s.log.ErrorContext(ctx,
			"franz: record is lost: it has used up its deliveries, and could not be copied to the retry topic before "+
				"the shutdown", "topic", rec.Topic, "partition", rec.Partition,
			"offset", rec.Offset, "deliveries", rec.DeliveryCount(), "retry_topic", s.config.RetryTopic)
	}
	s.settle(rec, kgo.AckRelease)
}

// carry copies a record to the retry topic, where it has all its deliveries before it, and settles it when that is
// confirmed. It tries until it can, or the worker stops. It reports false if the topic does not take such a record: no
// other try would change that, and nothing else could be begun any more.
func (s *shareSession) carry(ctx context.Context, rec *kgo.Record) bool {
	again := s.copyOf(rec)
	log := s.log.With("topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "deliveries",
		rec.DeliveryCount(), "retry_topic", s.config.RetryTopic)
	for tries := 1; ; tries++ {
		refused, err := s.publisher.relay(ctx, again)
		switch {
		case err == nil:
			log.WarnContext(ctx,
				"franz: record was delivered often without being settled, and goes on as a copy in the retry topic")
			s.settle(rec, kgo.AckAccept)
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
		if !s.wait(backoff(tries)) {
			s.giveBack(ctx, rec)
			return true
		}
	}
}

// moveOn copies a record that waits to the retry topic, where it waits on, and settles it when that is confirmed. That
// copies cannot be made is said once a minute: they may be as many as there are records in hand.
func (s *shareSession) moveOn(ctx context.Context, rec *kgo.Record, due time.Time) (moved, refused bool) {
	again := s.copyOf(rec)
	again.Headers = append(again.Headers, kgo.RecordHeader{Key: headerNotBefore, Value: strconv.AppendInt(nil,
		due.UnixMilli(), 10)})
	refused, err := s.publisher.relay(ctx, again)
	if err == nil {
		s.settle(rec, kgo.AckAccept)
		return true, false
	}
	if s.unmoved.due(sayEvery) {
		s.log.WarnContext(ctx,
			"franz: record that waits cannot be copied to the retry topic, and may soon keep others from being "+
				"delivered; there may be more", "topic", rec.Topic, "partition", rec.Partition,
			"offset", rec.Offset, "retry_topic", s.config.RetryTopic, "error", err)
	}
	return false, refused
}

func isDeadLetter(rec *kgo.Record) bool {
	return slices.ContainsFunc(rec.Headers, func(h kgo.RecordHeader) bool {
		return h.Key == producer.HeaderPurpose && string(h.Value) == producer.PurposeDeadLetter
	})
}

// copyOf returns a record for the retry topic that is the same delivery: headers and key are as they were.
func (s *shareSession) copyOf(rec *kgo.Record) *kgo.Record {
	again := &kgo.Record{Topic: s.config.RetryTopic, Key: rec.Key, Value: rec.Value}
	copied := rec.Topic == s.config.RetryTopic // then it says where it came from
	for _, h := range rec.Headers {
		switch {
		case strings.EqualFold(h.Key, producer.HeaderResend): // it is said of the copy that is given up here
		case !copied && (h.Key == producer.HeaderPurpose || h.Key == producer.HeaderTopic || h.Key == headerPosition ||
			h.Key == headerNotBefore):
		default:
			again.Headers = append(again.Headers, h)
		}
	}
	if !copied {
		again.Headers = append(again.Headers,
			kgo.RecordHeader{Key: producer.HeaderPurpose, Value: []byte(producer.PurposeRetry)},
			kgo.RecordHeader{Key: producer.HeaderTopic, Value: []byte(rec.Topic)},
			kgo.RecordHeader{Key: headerPosition, Value: []byte(position(rec))})
	}
	return again
}
