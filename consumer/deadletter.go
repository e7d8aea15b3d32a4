package consumer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/producer"
)

// Values of the header oncemill-outcome beside the kinds of outcome.
const (
	outcomeMismatch = "mismatch" // a known ID with other content
	outcomeRejected = "rejected" // no usable ID
)

// headerGaveUp names the handlers that gave a message up, also those of the dead letters that it was before: a token
// for each, joined by commas. HeaderHandler holds only the last one.
const headerGaveUp = "oncemill-gave-up"

func (p *Processor) token(handler string) string {
	return ids.Derive("oncemill/gave-up", p.config.Tenant, p.config.Group, handler)
}

// gaveUp reports whether a dead letter is one of its own handler, or a descendant of one. Under the ID of its own, its
// handler would run again for a message that it gave up, and for the dead letter of that, for ever.
func (p *Processor) gaveUp(d *Delivery) bool {
	if tokens := d.Header.Get(headerGaveUp); tokens != "" {
		return slices.Contains(strings.Split(tokens, ","), p.token(d.Handler))
	}
	return d.Header.Get(producer.HeaderHandler) == p.scope(d.Handler)
}

// mostReturns is how often a dead letter goes back to DeadLetterTopic. An operator may try to send it to its handler
// that often. It needs an end, because what is delivered by a pattern may come from there too.
const mostReturns = 10

// ownDeadLetter deals with a dead letter that came to its own handler. If it did not come from DeadLetterTopic,
// somebody has sent it as it is and may not have it any more. So it goes back there before it is acknowledged. Without
// DeadLetters it cannot go back. This Processor did not make it then, and another handler of dead letters with the same
// names keeps it.
func (p *Processor) ownDeadLetter(ctx context.Context, d Delivery, own error) Decision {
	id, original := d.Header.Get(producer.HeaderID), d.Header.Get(producer.HeaderOriginalID)
	if p.config.DeadLetters == nil {
		pause := p.config.Policy.Backoff.Max
		p.log.ErrorContext(ctx,
			"oncemill: dead letter came to the group and handler that made it, and Config.DeadLetters is nil: it "+
				"is not handled, and comes again; give the program that handles dead letters a Group or a Handler "+
				"of its own",
			"id", id, "original", original, "topic", d.Topic, "handler", d.Handler, "again_in", pause)
		return Decision{Action: RetryLater, Delay: pause + jitter(ctx, pause), Err: own}
	}
	p.log.ErrorContext(ctx,
		"oncemill: own dead letter came back: it is acknowledged, and its handler does not run; let this group "+
			"consume no dead letters of its own, and run one again with consumer.Rerun",
		"id", id, "original", original, "topic", d.Topic, "handler", d.Handler)
	if d.Topic == p.config.DeadLetterTopic {
		return Decision{Action: Ack, Err: own}
	}
	token := p.token(d.Handler)
	tokens := cmp.Or(d.Header.Get(headerGaveUp), token) // there may be the name alone
	if returns := strings.Count(tokens, token) - 1; returns >= mostReturns {
		p.log.ErrorContext(ctx,
			"oncemill: own dead letter has gone back to the dead letters too often: it is dropped, and goes back no "+
				"more; stop what sends dead letters to their own handler",
			"id", id, "original", original, "topic", d.Topic, "handler", d.Handler, "returns", returns)
		return Decision{Action: Ack, Err: own}
	}
	if id == "" {
		return p.undeliverable(ctx, d, original, outcomeRejected, own)
	}
	header := carried(d.Header)
	header[producer.HeaderPurpose] = producer.PurposeDeadLetter
	// for JetStream it were a duplicate of one before
	header[producer.HeaderGeneration] = strconv.Itoa(strings.Count(tokens, ",") + 2)
	header[headerGaveUp] = tokens + "," + token
	letter := dedupstore.Produced{ID: id, Topic: p.config.DeadLetterTopic, Header: header, Payload: d.Payload}
	if err := p.publishProduced(ctx, &d, original, []dedupstore.Produced{letter}); err != nil {
		return p.notPublished(ctx, "", err)
	}
	return Decision{Action: Ack, Err: own}
}

// notPublished is what to do with a delivery whose dead letter cannot be published.
func (p *Processor) notPublished(ctx context.Context, id string, err error) Decision {
	d := unpublished(id, p.config.Policy.Backoff.Min, err)
	d.Delay += jitter(ctx, d.Delay)
	return d
}

// unpublished is the decision for a delivery that comes again to have something published.
func unpublished(id string, wait time.Duration, err error) Decision {
	res := oncemill.Result{Status: oncemill.StatusUnpublished, Wait: wait, Err: err}
	return Decision{Action: RetryLater, Delay: wait, ID: id, Result: res, Err: &oncemill.Error{Result: res}}
}

func (p *Processor) scope(handler string) string {
	return headers.Scope(p.config.Tenant, p.config.Group, handler)
}

// deadLetter makes the dead letter of a failure. Every call for the same failure makes the same ID.
func (p *Processor) deadLetter(
	d Delivery, key dedupstore.Key, o dedupstore.Outcome, attempt int, fence uint64,
) dedupstore.Produced {
	id := ids.Derive("oncemill/dead-letter", key.Tenant, key.Group, key.Handler, key.ID, p.config.DeadLetterTopic,
		strconv.FormatUint(fence, 10))
	letter := p.letter(d, id, key.ID, string(o.Kind), o.Reason)
	letter.Header[producer.HeaderAttempts] = strconv.Itoa(attempt)
	letter.Header[producer.HeaderFence] = strconv.FormatUint(fence, 10)
	return letter
}

// letter wraps a delivery, as it came, into a dead letter.
func (p *Processor) letter(d Delivery, id, original, outcome, reason string) dedupstore.Produced {
	header := carried(d.Header)
	maps.DeleteFunc(header, func(name, _ string) bool {
		// of what nobody recorded Rerun would take them for the record's
		return slices.Contains([]string{producer.HeaderOriginalID, producer.HeaderFence, producer.HeaderAttempts},
			strings.ToLower(name))
	})
	header[producer.HeaderID] = id
	header[producer.HeaderPurpose] = producer.PurposeDeadLetter
	header[producer.HeaderTopic] = d.Topic
	header[producer.HeaderHandler] = p.scope(d.Handler)
	header[headerGaveUp] = p.token(d.Handler)
	if before := d.Header.Get(headerGaveUp); before != "" {
		header[headerGaveUp] += "," + before
	}
	header[producer.HeaderOutcome] = outcome
	header[producer.HeaderReason] = reason
	if original != "" {
		header[producer.HeaderOriginalID] = original
	}
	return dedupstore.Produced{ID: id, Topic: p.config.DeadLetterTopic, Header: header, Payload: d.Payload}
}

// carried is what a dead letter has of a header.
func carried(of producer.Header) producer.Header {
	header := producer.Header{}
	for name, value := range of {
		if copyHeader(name) {
			continue
		}
		if !headers.Portable(name, value) {
			name, value = escaped(name, value)
		}
		header[name] = value
	}
	return header
}

// escaped is a header as every broker carries it.
func escaped(name, value string) (string, string) {
	return producer.HeaderEscaped + url.QueryEscape(name), url.QueryEscape(value)
}

// copyHeader reports whether a header belongs to the copy that was delivered, not to the message: it must not be passed
// on.
func copyHeader(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case producer.HeaderName, producer.HeaderRerun, producer.HeaderPurpose, producer.HeaderGeneration,
		producer.HeaderResend, headerGaveUp:
		return true
	}
	return headers.Order(name)
}

// publishDeadLetter makes sure that the dead letter of a failure is published before the delivery is acknowledged. It
// is the publish step of the outcome, or it is missing because the failure was stored when there was no dead-letter
// topic yet.
func (p *Processor) publishDeadLetter(
	ctx context.Context, d *Delivery, call oncemill.Call, decision Decision,
) Decision {
	res, failure := decision.Result, decision.Err
	topic := p.config.DeadLetterTopic
	if publication := res.Publication; publication != nil {
		decision.Result.Publication, topic = nil, publication.Messages()[0].Topic
		defer publication.Abandon() // nothing after Done; else, whatever happens, the key is not held for ever
		if err := p.publishProduced(ctx, d, call.Key.ID, publication.Messages()); err != nil {
			return unpublished(call.Key.ID, publication.Abandon(), err)
		}
		if err := publication.Done(); err != nil {
			unrecorded, _ := errors.AsType[*oncemill.Error](err)
			return p.decide(ctx, d, unrecorded.Result, err)
		}
		if call.Rerun != 0 && call.Rerun == res.Fence {
			// It came before that was recorded of a dead letter that somebody has: nothing has run yet.
			pause := p.config.Policy.Backoff.Min
			early := oncemill.Result{Status: oncemill.StatusNotDue, Wait: pause}
			decision = Decision{Action: RetryLater, Delay: pause + jitter(ctx, pause), Result: early,
				Err: &oncemill.Error{Result: early, Key: call.Key}}
		}
	} else if len(res.Outcome.Produced) > 0 {
		return decision // a duplicate: the dead letter has been published
	} else if err := p.publishProduced(ctx, d, call.Key.ID, call.DeadLetter(res.Outcome, res.Attempt,
		res.Fence)); err != nil {
		return p.notPublished(ctx, "", err)
	}
	p.log.WarnContext(ctx, "oncemill: message dead-lettered", "id", call.Key.ID, "topic", topic, "from", d.Topic,
		"position", d.Position, "error", failure)
	return decision
}

// errNoDeadLetters says that a Processor without dead letters got an outcome of one that has them.
var errNoDeadLetters = errors.New("consumer: the record holds a dead letter that is still to be published, but " +
	"Config.DeadLetters is nil")

// longPublish is after which time somebody is told of a dead letter whose publisher does not return. The publishers of
// this module give up before, by default.
const longPublish = time.Minute

// publishProduced publishes the dead letter of a message, to the topic that was configured where it was made. Until it
// can, the message holds up what waits behind it.
func (p *Processor) publishProduced(ctx context.Context, d *Delivery, original string,
	produced []dedupstore.Produced) error {
	messages := make([]producer.Message, len(produced))
	for i, m := range produced {
		messages[i] = producer.Message{ID: m.ID, Topic: m.Topic, Key: m.Key, Header: m.Header, Payload: m.Payload}
	}
	err := errNoDeadLetters
	if p.config.DeadLetters != nil {
		from, position := d.Topic, d.Position // the delivery is cleared when it has ended
		late := time.AfterFunc(longPublish, func() {
			p.log.ErrorContext(ctx,
				"oncemill: dead letter is still being published: until Config.DeadLetters returns, its message is "+
					"not acknowledged, and may hold up others",
				"id", original, "topic", produced[0].Topic, "from", from, "position", position, "for", longPublish)
		})
		defer late.Stop() // also of one that panics
		err = p.config.DeadLetters.Publish(ctx, messages...)
	}
	if err != nil && ctx.Err() == nil { // not in a shutdown
		p.log.ErrorContext(ctx,
			"oncemill: dead letter cannot be published: its message comes again, and may hold up others; see that "+
				"a stream or topic takes it",
			"id", original, "topic", produced[0].Topic, "from", d.Topic, "position", d.Position, "error", err)
	}
	return err
}

// undeliverable deals with a delivery that no record can be kept of: it is acknowledged only after its dead letter is.
// The dead letter's ID follows from the content, so that copies of the delivery make one. Without an ID, they are those
// of one position.
func (p *Processor) undeliverable(ctx context.Context, d Delivery, original, outcome string, cause error) Decision {
	if p.config.DeadLetters == nil {
		return Decision{Action: Reject, Err: cause}
	}
	sum := sha256.Sum256(d.Payload)
	parts := []string{p.config.Tenant, p.config.Group, d.Handler, d.Topic, p.config.DeadLetterTopic, outcome, original,
		string(sum[:])}
	// Many messages without an ID may have one content, as tombstones do: position and key tell them apart.
	if original == "" {
		parts = append(parts, d.Position, d.Header.Get(producer.HeaderKey))
	}
	id := ids.Derive("oncemill/undeliverable", parts...)
	letter := p.letter(d, id, original, outcome, headers.Text(cause.Error(), dedupstore.MaxReason))
	if err := p.publishProduced(ctx, &d, original, []dedupstore.Produced{letter}); err != nil {
		return p.notPublished(ctx, "", err)
	}
	p.log.WarnContext(ctx, "oncemill: message dead-lettered", "id", original, "topic", p.config.DeadLetterTopic, "from",
		d.Topic, "position", d.Position, "error", cause)
	return Decision{Action: Ack, Err: cause}
}
