package franz

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A shareRecord is offered until it is settled, or until the worker stops and gives it back.
type shareRecord struct {
	*kgo.Record
	s       *shareSession
	offers  int
	moves   bool      // it goes on as a copy if too many come after it while it waits for its next attempt
	movesAt time.Time // not before
}

// start offers the record, for which there is a place. It reports false if it does not need that: the record is not
// due, or nothing starts any more. The context is that of all handlers.
func (r *shareRecord) start(ctx context.Context) bool {
	s := r.s
	if !s.begin() {
		s.giveBack(ctx, r.Record)
		return false
	}
	d, due, err := s.intake.delivery(r.Record)
	if err != nil {
		s.fail(err)
		due = time.Now().Add(maxDelay) // the run ends before
	}
	if r.offers == 0 && time.Until(due) > 0 {
		r.rest(ctx, due, false)
		s.end()
		return false
	}
	r.offers++
	d.Count = int(r.DeliveryCount()) - 1 + r.offers
	s.process(ctx, &offer{r.Record, d, s.running, &s.pool, func(decision consumer.Decision) {
		r.decided(ctx, decision)
	}})
	return true
}

// decided carries out what is to be done with the record. It waits for nothing.
func (r *shareRecord) decided(ctx context.Context, decision consumer.Decision) {
	s := r.s
	s.pool.Go(func() {
		defer s.end()
		s.inFlight.leave()
		s.inFlight.fill()
		r.conclude(ctx, decision)
	})
}

func (r *shareRecord) conclude(ctx context.Context, decision consumer.Decision) {
	s := r.s
	if decision.Action == consumer.Ack {
		s.settle(r.Record, kgo.AckAccept)
		return
	}
	d, _, _ := s.intake.delivery(r.Record) // the one before was the handler's to change
	if decision.Action == consumer.Reject {
		s.log.ErrorContext(telemetry.Located(ctx, d.Header),
			"franz: record rejected: nobody has it as a dead letter", "topic", r.Topic, "partition", r.Partition,
			"offset", r.Offset, "id", decision.ID, "error", decision.Err)
		s.settle(r.Record, kgo.AckReject)
		return
	}
	s.stalled(ctx, d, r.Record, decision, r.offers)
	r.rest(ctx, time.Now().Add(delayOf(decision, s.policy, r.offers)), failedAttempt(decision))
}

// rest lets the record wait until it is due, which takes no room. If it moves, it goes on as a copy when too many have
// come after it. Records move whose own attempt failed: where a store or what handlers call is away, others would have
// to wait as well. Those of the retry topic stay in any case, or the copies would go round, so do dead letters, as
// copies would not say of what they are, and what the retry topic has refused.
func (r *shareRecord) rest(ctx context.Context, due time.Time, moves bool) {
	s := r.s
	w := &rest{record: r, due: due, moves: moves && r.moves}
	s.inFlight.rest(w)
	if closed(s.halted) && s.inFlight.stop(w) { // which may have come before
		s.giveBack(ctx, r.Record)
		s.inFlight.goOn()
		return
	}
	after(s.halted, func() time.Duration { return time.Until(due) }, func() {
		if !s.begin() {
			return // it is given back
		}
		defer s.end()
		if s.inFlight.stop(w) {
			s.inFlight.goOn()
			s.inFlight.add(func() bool { return r.start(ctx) })
			s.inFlight.fill()
		}
	})
}

// A rest is the wait of a record for its time.
type rest struct {
	record *shareRecord
	due    time.Time
	moves  bool
}

// move has a record go on as a copy whose rest was stopped for that. If the copy cannot be made, it rests on: what the
// retry topic has refused stays, as another try would hold up those that publish beside it, and others are not tried at
// each poll.
func (w *rest) move(ctx context.Context) {
	r := w.record
	s := r.s
	defer s.end()
	if moved, refused := s.moveOn(ctx, r.Record, w.due); !moved {
		r.moves, r.movesAt = !refused, time.Now().Add(maxDelay)
		r.rest(ctx, w.due, w.moves)
	}
	s.inFlight.goOn()
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
		refused, err := s.publisher.forward(ctx, again)
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
		pause(s.halted, backoff(tries))
		if closed(s.halted) {
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
	refused, err := s.publisher.forward(ctx, again)
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
