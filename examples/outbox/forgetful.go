package main

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"

	"github.com/oncemill/oncemill/producer"
)

// errLostAck says that the broker has a message, and the relay does not know it.
var errLostAck = errors.New("the acknowledgement was lost on its way")

// A forgetful publisher publishes, and loses the acknowledgement of one message in ten, once. The relay has to publish
// those again, with the same ID. It is safe for concurrent use.
type forgetful struct {
	producer.Publisher
	seed uint64

	mu   sync.Mutex
	lost map[string]bool // by message ID
}

func newForgetful(p producer.Publisher, seed uint64) *forgetful {
	return &forgetful{Publisher: p, seed: seed, lost: map[string]bool{}}
}

// Publish implements producer.Publisher.
func (f *forgetful) Publish(ctx context.Context, messages ...producer.Message) error {
	if err := f.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	var failures []producer.Failure
	for i, m := range messages {
		if f.loses(m.ID) {
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errLostAck, Unknown: true})
		}
	}
	if failures == nil {
		return nil
	}
	return &producer.PublishError{Failures: failures}
}

func (f *forgetful) loses(id string) bool {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	if (h.Sum64()^f.seed)%10 != 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	again := f.lost[id]
	f.lost[id] = true
	return !again
}
