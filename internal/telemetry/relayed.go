package telemetry

import "sync"

// relayed is what a relay leaves in the context of a publish call, for publishers that know more about a message. They
// speak of one after the other.
type relayed struct {
	batch *Batch

	mu   sync.Mutex
	last int // that was spoken of
}

type relayedKey struct{}

func (r *relayed) find(topic, id string) *relayedMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	messages := r.batch.messages
	for n := range messages {
		i := (r.last + n) % len(messages)
		if m := &messages[i]; m.id == id && m.topic == topic {
			r.last = i
			return m
		}
	}
	return nil
}
