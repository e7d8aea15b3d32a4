package franz

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// conclude carries out a decision that is more than an ack. It reports whether the record is settled, and else after
// which delay it is to be offered again.
func (s *session) conclude(
	ctx context.Context, r *record, decision consumer.Decision,
) (settled bool, delay time.Duration) {
	rec := r.Record
	d, _, _ := s.intake.delivery(rec) // the one before was the handler's to change
	located := telemetry.Located(ctx, d.Header)
	switch decision.Action {
	case consumer.Reject:
		s.log.ErrorContext(located,
			"franz: record rejected: it is passed over, and nobody has it as a dead letter",
			"topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "id", decision.ID,
			"error", decision.Err)
		return true, 0
	case consumer.Leave:
		return false, delayOf(decision, s.policy, r.offers)
	}
	if failedAttempt(decision) {
		sent, err := s.postpone(ctx, d, rec, decision)
		if sent {
			return true, 0
		}
		if err != nil {
			s.log.WarnContext(located, "franz: record cannot be published to its retry topic, and waits in its place",
				"id", decision.ID, "partition", r.partition.name(), "offset", rec.Offset, "error", err)
		}
	}
	s.stalled(ctx, d, rec, decision, r.offers)
	return false, delayOf(decision, s.policy, r.offers)
}

// failedAttempt reports whether a record waits for its own next attempt.
func failedAttempt(decision consumer.Decision) bool {
	retry, failed := decision.Err.(*oncemill.RetryError) //nolint:errorlint // the guard's own error
	return failed && !retry.Uncounted
}

// After manyTries offers of a record somebody is told, then again after twice as many, and so on; of many records that
// wait for the same, of one each tellEvery.
const (
	manyTries = 8
	tellEvery = time.Second
)

// stalled says that a record waits for long: nobody else does.
func (w *watching) stalled(ctx context.Context, d consumer.Delivery, rec *kgo.Record, decision consumer.Decision,
	tries int) {
	if tries < manyTries || tries&(tries-1) != 0 {
		return
	}
	if w.waits.due(tellEvery) {
		w.log.WarnContext(telemetry.Located(ctx, d.Header),
			"franz: record has been offered many times and waits; there may be "+
				"more", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset,
			"id", decision.ID, "offers", tries, "error", decision.Err)
	}
}

// postponed says that a record of a retry topic is not due for longer than retries take: what is behind it waits, too,
// and after a clock that was wrong that is for ever.
func (s *session) postponed(ctx context.Context, d consumer.Delivery, rec *kgo.Record, due time.Time) {
	i := s.config.retryIndex(rec.Topic)
	if i >= 0 && time.Until(due) > max(s.policy.Backoff.Max, s.config.Retry[i].Delay)+sayEvery {
		s.log.WarnContext(telemetry.Located(ctx, d.Header),
			"franz: record of a retry topic is not due for long, and what is behind it in its partition waits, too: "+
				"its handler asked for that (RetryAfter), the clock of the process that copied it was wrong, or "+
				"somebody else has put it there",
			"topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "due", due)
	}
}

// delayOf is when a record is to be offered again that is not settled.
func delayOf(decision consumer.Decision, policy oncemill.Policy, tries int) time.Duration {
	switch {
	case decision.Action == consumer.Leave:
		return max(policy.Lease/3, minDelay) // its owner may die, and then the record has to be here
	case decision.Delay > 0:
		return decision.Delay
	}
	return backoff(tries)
}

func backoff(tries int) time.Duration { return min(minDelay<<min(tries-1, 8), maxDelay) }

// Delays of records that are to be offered again, when the decision names none.
const (
	minDelay = 50 * time.Millisecond
	maxDelay = 10 * time.Second
)

// postpone publishes a record whose handler failed to its next retry topic, if there is one. It reports whether the
// copy is confirmed.
func (s *session) postpone(ctx context.Context, d consumer.Delivery, rec *kgo.Record,
	decision consumer.Decision) (sent bool, err error) {
	if s.retry == nil || d.Header.Get(producer.HeaderPurpose) == producer.PurposeDeadLetter {
		return false, nil // a copy of a dead letter would not say of what it is one
	}
	id := d.Header.Get(producer.HeaderID)
	if id == "" {
		id = decision.ID // found elsewhere: the copy has it as its own
	}
	if id == "" {
		return false, nil
	}
	next := s.config.Retry[min(s.config.retryIndex(rec.Topic)+1, len(s.config.Retry)-1)]
	header := maps.Clone(d.Header)
	delete(header, producer.HeaderResend) // it is said of the copy that is given up here
	header[producer.HeaderPurpose] = producer.PurposeRetry
	header[producer.HeaderTopic] = d.Topic
	header[headerNotBefore] = strconv.FormatInt(time.Now().Add(max(next.Delay, decision.Delay)).UnixMilli(), 10)
	if d.Position != "" {
		header[headerPosition] = d.Position
	}
	if d.UUID != "" {
		header[headerUUID] = d.UUID
	}
	err = s.retry.Publish(ctx, producer.Message{ID: id, Topic: next.Topic, Key: string(rec.Key),
		Header: header, Payload: rec.Value})
	return err == nil, err
}
