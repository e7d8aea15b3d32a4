package oncewatermill

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// outgoing turns what a handler returned into its outputs, for the topic to which the Router publishes.
func outgoing(ctx context.Context, returned []*message.Message) ([]producer.Message, error) {
	topic := message.PublishTopicFromCtx(ctx)
	outputs := make([]producer.Message, len(returned))
	for i, m := range returned {
		if m == nil { // the effect has happened, and another run would return the same
			return nil, oncemill.Permanent(fmt.Errorf("oncewatermill: output %d is nil", i))
		}
		outputs[i] = producer.Message{Topic: topic, Header: producer.Header(m.Metadata), Payload: m.Payload}
	}
	return outputs, nil
}

// produced turns stored outputs into what the Router publishes. Those of a run of this delivery keep the context values
// that the handler gave them, without its cancellation: the run is over.
func produced(stored []dedupstore.Produced, returned []*message.Message) []*message.Message {
	messages := make([]*message.Message, len(stored))
	for i, p := range stored {
		ctx := context.Background()
		if len(returned) == len(stored) {
			ctx = context.WithoutCancel(returned[i].Context())
		}
		messages[i] = ToMessage(ctx, producer.Message{ID: p.ID, Key: p.Key, Header: p.Header, Payload: p.Payload})
	}
	return messages
}
