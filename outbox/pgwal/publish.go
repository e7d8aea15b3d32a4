package pgwal

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

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
	given := make([]answer, len(rows))
	for i, row := range rows {
		messages[i] = outgoing(row)
		given[i].row = row
	}
	within, batch := r.begin(ctx, rows, messages)
	defer end(within, batch, given)
	err := r.protected(within, messages)
	if err == nil {
		return given
	}
	if failures, ok := producer.Failures(err, len(rows)); ok {
		for _, f := range failures {
			given[f.Index].err, given[f.Index].unknown = f.Err, f.Unknown
		}
		return given
	}
	for i := range given {
		given[i].err, given[i].unknown = err, true
	}
	return given
}

// overdue is how long after PublishTimeout a publisher is said not to obey its context.
const overdue = 10 * time.Second

// protected publishes, and turns a panic of the publisher into an error, which says nothing about the messages: a message
// must not end one relay after the other.
func (r *Relay) protected(ctx context.Context, messages []producer.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pgwal: publisher panicked: %v", v)
			r.log.ErrorContext(ctx, "pgwal: publisher panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	late := time.AfterFunc(r.cfg.PublishTimeout+overdue, func() {
		r.log.WarnContext(ctx, "pgwal: publisher does not return, though its time is over, and holds up the relay",
			"messages", len(messages), "id", messages[0].ID, "topic", messages[0].Topic)
	})
	defer late.Stop()
	return r.publisher.Publish(ctx, messages...)
}
