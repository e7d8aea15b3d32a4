package shop

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/oncemill/oncemill/producer"
)

// A Forgetful publisher publishes, and loses the acknowledgement of some messages. A relay has to publish those again,
// with the same ID.
type Forgetful struct {
	producer.Publisher
	Loses func(ctx context.Context, id string) bool
}

// ForgetTenth loses every tenth acknowledgement. It is safe for concurrent use.
func ForgetTenth(pub producer.Publisher) *Forgetful {
	var n atomic.Int64
	return &Forgetful{pub, func(context.Context, string) bool { return n.Add(1)%10 == 0 }}
}

// Publish implements producer.Publisher.
func (f *Forgetful) Publish(ctx context.Context, messages ...producer.Message) error {
	if err := f.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	var failures []producer.Failure
	for i, m := range messages {
		if f.Loses(ctx, m.ID) {
			lost := errors.New("the acknowledgement was lost on its way")
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: lost, Unknown: true})
		}
	}
	if failures == nil {
		return nil
	}
	return &producer.PublishError{Failures: failures}
}
