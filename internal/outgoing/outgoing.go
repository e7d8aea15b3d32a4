// Package outgoing is what outboxes and their relays share. It turns messages into rows and back. It calls a publisher
// once, keeps what that said about each message, and writes the lines of the log.
package outgoing

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Message is what a row publishes.
type Message struct {
	producer.Message
	Unknowns int           // attempts before this one that got no answer
	Age      time.Duration // of the row, for metrics; zero: not known
}

// An Answer is what the publisher said about one message.
type Answer struct {
	Err     error // nil: acknowledged
	Unknown bool  // Err says that no answer came
}

// A Sender calls the publisher of a relay. It is safe for concurrent use. The zero value of what is not exported is
// ready.
type Sender struct {
	Publisher producer.Publisher
	Telemetry *telemetry.Relay
	Log       *slog.Logger

	lines pace.Limiter // about messages that were not acknowledged
}

// Send publishes messages by one call of the publisher, and returns an answer for each.
func (s *Sender) Send(ctx context.Context, messages []Message) []Answer {
	answers := make([]Answer, len(messages))
	if len(messages) == 0 {
		return answers
	}
	sent := make([]producer.Message, len(messages))
	for i, m := range messages {
		sent[i] = m.Message
		if m.Unknowns > 0 { // this may be a copy, and consumers are told
			sent[i].Header = m.Header.With(producer.HeaderResend, strconv.Itoa(m.Unknowns))
		}
	}
	within, batch, err := s.protected(ctx, messages, sent)
	if batch != nil {
		defer end(within, batch, answers)
	}
	if err == nil {
		return answers
	}
	if failures, ok := producer.Failures(err, len(sent)); ok {
		for _, f := range failures {
			answers[f.Index] = Answer{Err: f.Err, Unknown: f.Unknown}
		}
		return answers
	}
	for i := range answers {
		answers[i] = Answer{Err: err, Unknown: true}
	}
	return answers
}

// begin tells telemetry that messages are about to be published, and links each of them to its trace.
func (s *Sender) begin(
	ctx context.Context, messages []Message, sent []producer.Message,
) (context.Context, *telemetry.Batch) {
	within, batch := s.Telemetry.Begin(ctx, len(sent))
	if batch == nil {
		return ctx, nil
	}
	for i := range sent {
		m, age := &sent[i], messages[i].Age
		if m.Header.Get(producer.HeaderPurpose) == producer.PurposeReplay {
			age = 0
		}
		m.Header = batch.Send(within, m.Topic, m.ID, m.Header, age)
	}
	return within, batch
}

// end tells telemetry what became of them.
func end(ctx context.Context, batch *telemetry.Batch, answers []Answer) {
	failed := true
	for i, a := range answers {
		batch.Sent(ctx, i, a.Err, a.Unknown)
		failed = failed && a.Err != nil
	}
	batch.End(ctx, failed)
}

// protected publishes, and turns a panic of the publisher or of the program's telemetry into an error that says nothing
// about the messages. One message must not end relay after relay.
func (s *Sender) protected(
	ctx context.Context, messages []Message, sent []producer.Message,
) (within context.Context, batch *telemetry.Batch, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("outbox: publisher panicked: %v", v)
			s.Log.ErrorContext(ctx, "outbox: publisher panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	within, batch = s.begin(ctx, messages, sent)
	return within, batch, s.Publisher.Publish(within, sent...)
}

// complainEvery is the shortest time between two lines about messages that were not acknowledged: a publisher that
// fails at once would make one for each call. Anything in between is in metrics alone.
const complainEvery = time.Minute

// Complain says what of a call was not acknowledged, and what became of the first such message, unless there was such a
// line within a minute.
func (s *Sender) Complain(ctx context.Context, messages, of int, first *producer.Message, err error) {
	if s.lines.Due(complainEvery) {
		s.Log.WarnContext(ctx, "outbox: messages were not acknowledged", "messages", messages, "of", of,
			"topic", first.Topic, "id", first.ID, "error", err)
	}
}
