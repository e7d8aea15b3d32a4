package franz

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// After manyTries offers of a record there is a log line, then again after twice as many, and so on. Of many records
// that wait for the same, one gets a line each tellEvery.
const (
	manyTries = 8
	tellEvery = time.Second
)

// conclude carries out a decision that is more than an ack. It reports whether the record is settled, and otherwise the
// delay until its next offer.
func (r *record) conclude(ctx context.Context, decision consumer.Decision) (settled bool, delay time.Duration) {
	d, _, _ := r.intake.delivery(r.Record) // the one before was the handler's to change
	located := telemetry.Located(ctx, d.Header)
	log := r.log.With("topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "id", decision.ID)
	delay = delayOf(decision, r.policy, r.offers)
	switch {
	case decision.Action == consumer.Reject:
		log.ErrorContext(located, "franz: record rejected: it is passed over, and there is no dead letter of it",
			"error", decision.Err)
		return true, 0
	case decision.Action == consumer.Leave:
		return false, delay
	case len(r.retry) > 0 && failedAttempt(decision) && !isDeadLetter(d): // its copy would not say of what it is one
		next := r.nextRetry(r.Topic)
		err := r.publisher.forward(ctx, copyOf(r.Record, d, next.Topic, time.Now().Add(max(next.Delay, delay))))
		if err == nil {
			return true, 0
		}
		if r.uncopied.Due(tellEvery) {
			log.WarnContext(located, "franz: record cannot be copied to its retry topic, and waits in its place",
				"retry_topic", next.Topic, "error", err)
		}
	}
	if r.offers >= manyTries && r.offers&(r.offers-1) == 0 && r.stalled.Due(tellEvery) {
		log.WarnContext(located, "franz: record has been offered many times and waits; there may be more",
			"offers", r.offers, "error", decision.Err)
	}
	return false, delay
}

// failedAttempt reports whether a record waits for its own next attempt.
func failedAttempt(decision consumer.Decision) bool {
	return decision.Result.Status == oncemill.StatusRetry && !decision.Result.Uncounted
}

func isDeadLetter(d consumer.Delivery) bool {
	return d.Header.Get(producer.HeaderPurpose) == producer.PurposeDeadLetter
}

// delayOf is how long a record that is not settled waits for its next offer.
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

// Delays until a record's next offer, when the decision names none.
const (
	minDelay = 50 * time.Millisecond
	maxDelay = 10 * time.Second
)

// copyOf returns a record for a retry topic that is the same delivery: key, value and headers are as they were.
func copyOf(rec *kgo.Record, d consumer.Delivery, topic string, due time.Time) *kgo.Record {
	again := &kgo.Record{Topic: topic, Key: rec.Key, Value: rec.Value}
	add := func(name, value string) {
		again.Headers = append(again.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	for _, h := range rec.Headers {
		switch h.Key {
		case producer.HeaderPurpose, producer.HeaderTopic, headerPosition, headerNotBefore:
		default:
			if !strings.EqualFold(h.Key, producer.HeaderResend) { // which is said of the copy that is given up here
				again.Headers = append(again.Headers, h)
			}
		}
	}
	add(producer.HeaderPurpose, producer.PurposeRetry)
	add(producer.HeaderTopic, d.Topic)
	add(headerPosition, d.Position)
	add(headerNotBefore, strconv.FormatInt(due.UnixMilli(), 10))
	return again
}
