package pgwal

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/oncemill/oncemill/producer"
)

// An answer is what the publisher said about one message.
type answer struct {
	row     *row
	err     error // nil: acknowledged
	unknown bool  // err says that no answer came
}

// publish publishes rows by one call of the publisher.
func (r *Relay) publish(ctx context.Context, rows []*row) []answer {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	messages := make([]producer.Message, len(rows))
	answers := make([]answer, len(rows))
	for i, row := range rows {
		messages[i] = row.message
		answers[i].row = row
	}
	err := r.protected(ctx, messages)
	if err == nil {
		return answers
	}
	if failures, ok := perMessage(err, len(rows)); ok {
		for _, f := range failures {
			answers[f.Index].err, answers[f.Index].unknown = f.Err, f.Unknown
		}
		return answers
	}
	for i := range answers {
		answers[i].err, answers[i].unknown = err, true
	}
	return answers
}

// protected publishes, and turns a panic of the publisher into an error, which says nothing about the messages: a message
// must not end one relay after the other.
func (r *Relay) protected(ctx context.Context, messages []producer.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pgwal: publisher panicked: %v", v)
			r.log.ErrorContext(ctx, "pgwal: publisher panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return r.publisher.Publish(ctx, messages...)
}

// perMessage returns what an error says about single messages. It reports false if it says nothing, or nothing that
// makes sense: then all is unknown.
func perMessage(err error, messages int) ([]producer.Failure, bool) {
	e := alone(err)
	if e == nil || len(e.Failures) == 0 {
		return nil, false
	}
	for _, f := range e.Failures {
		if f.Index < 0 || f.Index >= messages || f.Err == nil {
			return nil, false
		}
	}
	return e.Failures, true
}

// alone returns the PublishError that err is or wraps, and nil if it stands beside other errors: a message that it does
// not mention may be in one of those.
func alone(err error) *producer.PublishError {
	for ; err != nil; err = errors.Unwrap(err) { // not into joined errors
		if e, ok := err.(*producer.PublishError); ok { //nolint:errorlint // this is the search
			return e
		}
	}
	return nil
}

const maxReason = 1024

// reason is the text of an error, cut with a mark if it is longer than is kept.
func reason(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxReason {
		return s
	}
	mark := fmt.Sprintf("… (%d bytes)", len(s))
	return strings.ToValidUTF8(s[:maxReason-len(mark)], "") + mark
}
