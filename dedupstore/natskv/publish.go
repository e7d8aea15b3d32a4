package natskv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/natswire"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/producer"
)

var _ producer.Publisher = (*Store)(nil)

// ErrNoRun is the error of Publish with the context of a run of an inbox that has ended.
const ErrNoRun = txctx.NoTx("natskv: the run of the inbox has ended: what it publishes now would be of no run")

const noStream = "is empty: only a store over a stream can publish; set it and Config.Subject"

// publishWithin is how long Publish sends a batch again that got no answer, outside of a run.
const publishWithin = 3 * answerWithin

// A run collects what a handler publishes.
type run struct {
	store   *Store
	records int // that its outcomes are

	mu       sync.Mutex
	over     bool
	messages []*nats.Msg
}

// Publish publishes messages into the stream of the records, all of them or none, in one piece and in order. A run of
// the inbox has at most 999 messages of 64 MB in all, a batch of runs one less for each further run, a call outside
// 1,000. Their subjects must be the stream's, and not below Config.Subject. Messages must have an ID. Those that NATS
// cannot carry, or the stream would refuse, are an [*dedupstore.InvalidError], and nothing of the call is published.
//
// With the context of a run of the inbox it waits for the run's end, and asks the server for nothing. The messages are
// published with the run's outcome, or not at all. They carry no Nats-Msg-Id: the record is what prevents a second run.
//
// With any other context it publishes at once, and returns when the stream has acknowledged all. Called again with the
// same messages, in the same order, it returns nil and publishes nothing, for as long as the stream's duplicate window.
// A batch without an answer is sent again for 15 seconds, or half that window if it is shorter. Any error but an
// InvalidError is then a [*producer.PublishError] of all messages. If they are Unknown, all or none of them are in the
// stream: call Publish again, with the same messages.
func (s *Store) Publish(ctx context.Context, messages ...producer.Message) error {
	if !s.shared {
		return &dedupstore.InvalidError{Package: "natskv", Field: "Config.Stream", Problem: noStream}
	}
	r, inRun := txctx.From[*run](ctx)
	inRun = inRun && r.store.sameStream(s)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(messages) == 0 {
		return nil
	}
	if _, err := s.now(ctx); err != nil { // which looks at the stream, if that was long ago
		return err
	}
	encoded, ids, encode := make([]*nats.Msg, len(messages)), make([]string, len(messages)), s.encode
	if inRun {
		encode = r.store.encode
	}
	for i, m := range messages {
		var err error
		if encoded[i], ids[i], err = encode(ctx, m); err != nil {
			return err
		}
	}
	if inRun {
		return r.add(encoded)
	}
	if problem := tooMuch(encoded, maxBatch); problem != "" {
		return &dedupstore.InvalidError{Package: "natskv", Field: "messages", Problem: problem}
	}
	encoded[0].Header.Set(jetstream.MsgIDHeader, natswire.BatchID(ids)) // of all: one of them alone says nothing
	unknown, err := s.publishAtOnce(ctx, encoded)
	if err == nil {
		return nil
	}
	failures := make([]producer.Failure, len(messages))
	for i, m := range messages {
		failures[i] = producer.Failure{Index: i, ID: m.ID, Err: err, Unknown: unknown}
	}
	return &producer.PublishError{Failures: failures}
}

// sameStream reports whether what another store publishes can be in a batch of this one. A name alone says little: the
// other may have another server, account or domain.
func (s *Store) sameStream(other *Store) bool {
	return s == other || s.stream == other.stream && s.api == other.api && s.js.Conn() == other.js.Conn()
}

// encode makes a message of the stream of a producer's, and returns its ID for the stream.
func (s *Store) encode(ctx context.Context, m producer.Message) (*nats.Msg, string, error) {
	within, created := telemetry.Create(ctx, m.Topic, m.Header)
	m, err := producer.Outgoing(within, m)
	created(m.ID)
	if err != nil {
		return nil, "", err
	}
	encoded := &nats.Msg{Subject: m.Topic, Data: slices.Clone(m.Payload), Header: make(nats.Header, len(m.Header)+5)}
	id, err := natswire.Encode("natskv", &m, func(name, value string) { encoded.Header[name] = []string{value} })
	if err != nil {
		return nil, "", err
	}
	invalid := func(field, format string, args ...any) (*nats.Msg, string, error) {
		return nil, "", &dedupstore.InvalidError{Package: "natskv", Field: field, Problem: fmt.Sprintf(format, args...)}
	}
	limit := s.js.Conn().MaxPayload()
	if most := s.config.Load().MaxMsgSize; most > 0 {
		limit = min(limit, int64(most))
	}
	switch size := int64(encoded.Size()) + maxHeaders; {
	case natswire.Overlaps(s.prefix+".>", m.Topic):
		return invalid("Message.Topic", "is %q, where the records are: below Config.Subject", m.Topic)
	case !s.has(m.Topic):
		return invalid("Message.Topic", "is %q, which is no subject of stream %q, but of %q: publish it by another "+
			"publisher, or return it from the handler", m.Topic, s.stream, s.config.Load().Subjects)
	case limit > 0 && size > limit:
		return invalid("Message.Payload", "makes a message of %d bytes with its headers, want at most %d: the "+
			"server's max_payload, or the stream's MaxMsgSize", size, limit)
	}
	return encoded, id, nil
}

// has reports whether a subject is the stream's.
func (s *Store) has(subject string) bool { return has(s.config.Load().Subjects, subject) }

func has(patterns []string, subject string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return natswire.Overlaps(p, subject) })
}

func tooMuch(messages []*nats.Msg, most int) string {
	bytes := 0
	for _, m := range messages {
		bytes += m.Size()
	}
	switch {
	case len(messages) > most:
		return fmt.Sprintf("are %d, want at most %d in one batch", len(messages), most)
	case bytes > maxBatchBytes:
		return fmt.Sprintf("have %d bytes, want at most %d in one batch", bytes, maxBatchBytes)
	}
	return ""
}

// add adds messages to the batch of the run.
func (r *run) add(messages []*nats.Msg) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return ErrNoRun
	}
	all := append(slices.Clip(r.messages), messages...)
	if problem := tooMuch(all, maxBatch-r.records); problem != "" {
		return &dedupstore.InvalidError{Package: "natskv", Field: "messages", Problem: problem + ", beside the record"}
	}
	r.messages = all
	return nil
}

func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// Carry implements [txctx.Carrier].
func (r *run) Carry(ctx context.Context, produced []dedupstore.Produced) (rest []dedupstore.Produced, err error) {
	var own []*nats.Msg
	for _, p := range produced {
		if !r.store.has(p.Topic) {
			rest = append(rest, p)
			continue
		}
		m, _, err := r.store.encode(ctx,
			producer.Message{ID: p.ID, Topic: p.Topic, Key: p.Key, Header: p.Header, Payload: p.Payload})
		if err != nil {
			return nil, err
		}
		own = append(own, m)
	}
	return rest, r.add(own)
}

// publishAtOnce publishes a batch until it is known whether the stream has it.
func (s *Store) publishAtOnce(ctx context.Context, messages []*nats.Msg) (unknown bool, err error) {
	again := min(publishWithin, s.config.Load().Duplicates/2)
	last := messages[len(messages)-1] // the one that is answered
	pauses := pace.Pace{Shortest: 5 * time.Millisecond, Longest: 500 * time.Millisecond}
	for began := time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, answerWithin)
		switch alone := len(messages) == 1 && s.batches.fault == nil; {
		case alone && !s.js.Conn().IsConnected():
			err = &unsentError{nats.ErrDisconnected}
		case alone:
			_, err = s.js.PublishMsg(bounded, messages[0])
		default:
			_, err = s.batches.publish(bounded, messages)
		}
		cancel()
		switch {
		case err == nil, isCode(err, codeBatchDuplicate): // what an earlier try or call has published
			return false, nil
		case proves(err) && !passes(err) && !unknown:
			return false, s.failed(ctx, err, last.Subject)
		}
		unknown = unknown || !proves(err)
		if time.Since(began) > again || !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			// a refusal that passes says nothing about the messages either
			return true, errors.Join(s.failed(ctx, err, last.Subject), context.Cause(ctx))
		}
	}
}
