package franz

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
	"github.com/oncemill/oncemill/producer"
)

// A record is one that its partition has received. It is tried until it is settled, or its partition is given up:
// nobody can give it back.
type record struct {
	worker.Item
	rec   *kgo.Record
	p     *partition
	entry entry // in the partition's tracker
}

var _ worker.Message = (*record)(nil)

// Delivery is what a Processor gets for the next try, and when that is due.
func (r *record) Delivery(tries int) (consumer.Delivery, time.Time) {
	s := r.p.s
	d, due, err := s.decoder.delivery(r.rec)
	if err != nil {
		s.fail(err)
		due = time.Now().Add(maxDelay) // the run ends before
	}
	d.Count = tries + 1
	return d, due
}

// Acked settles the record.
func (r *record) Acked(context.Context) { r.p.settle(&r.entry) }

// After manyTries offers of a record there is a log line, then again after twice as many, and so on. Of many records
// that wait for the same, one gets a line each tellEvery.
const (
	manyTries = 8
	tellEvery = time.Second
)

// Decided carries out a decision that is not an ack.
func (r *record) Decided(ctx context.Context, decision consumer.Decision) (due time.Time, again bool) {
	s := r.p.s
	d, _, _ := s.decoder.delivery(r.rec) // the one before was the handler's to change
	located := telemetry.Located(ctx, d.Header)
	log := s.log.With("topic", r.rec.Topic, "partition", r.rec.Partition, "offset", r.rec.Offset, "id", decision.ID)
	delay, tries := delayOf(decision, s.policy, r.Tries()), r.Tries()
	switch {
	case decision.Action == consumer.Reject:
		log.ErrorContext(located, "franz: record rejected: it is passed over, and there is no dead letter of it",
			"error", decision.Err)
		r.p.settle(&r.entry)
		return due, false
	case decision.Action == consumer.Leave:
		return time.Now().Add(delay), true
	case s.publisher != nil && failedAttempt(decision) && !isDeadLetter(d): // its copy would not say of what it is one
		next := nextRetry(s.config.Retry, r.rec.Topic)
		copied := copyOf(r.rec, d, next.Topic, time.Now().Add(max(next.Delay, delay)))
		err := s.publisher.forward(ctx, copied)
		if err == nil {
			r.p.settle(&r.entry)
			return due, false
		}
		if s.uncopied.Due(tellEvery) {
			log.WarnContext(located, "franz: record cannot be copied to its retry topic, and waits in its place",
				"retry_topic", next.Topic, "error", err)
		}
	}
	if tries >= manyTries && tries&(tries-1) == 0 && s.stalled.Due(tellEvery) {
		log.WarnContext(located, "franz: record has been offered many times and waits; there may be more",
			"offers", tries, "error", decision.Err)
	}
	return time.Now().Add(delay), true
}

// nextRetry returns where the copy of a record of a topic goes.
func nextRetry(retry []RetryTopic, topic string) RetryTopic {
	return retry[min(retryIndex(retry, topic)+1, len(retry)-1)]
}

// retryIndex returns which retry topic a topic is, or -1.
func retryIndex(retry []RetryTopic, topic string) int {
	return slices.IndexFunc(retry, func(r RetryTopic) bool { return r.Topic == topic })
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
		return max(decision.Delay, minDelay)
	}
	return pace.Backoff(minDelay, maxDelay, tries)
}

// Delays until a record's next offer. The longest is for a decision that names none.
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
