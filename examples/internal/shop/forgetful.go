package shop

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"

	"github.com/oncemill/oncemill/producer"
)

// A Forgetful publisher publishes, and loses the acknowledgement of some messages. A relay has to publish those again,
// with the same ID.
type Forgetful struct {
	producer.Publisher
	Loses func(ctx context.Context, id string) bool
}

// ForgetTenth loses the acknowledgement of one message in ten, once. It is safe for concurrent use.
func ForgetTenth(pub producer.Publisher) *Forgetful {
	var lost sync.Map
	return &Forgetful{pub, func(_ context.Context, id string) bool {
		_, again := lost.LoadOrStore(id, true)
		return number(id)%10 == 0 && !again
	}}
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

// number makes a number of a text.
func number(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}
