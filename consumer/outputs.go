package consumer

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// stamp turns what a handler returned into produced messages with IDs of their own. The handler's messages are copied,
// not changed: it may have returned its input, or the same message twice.
//
// An ID follows from the consumed message's key, the topic, and the output's name (metadata oncemill-name) or else its
// place among the outputs. An ID that the handler set itself (metadata oncemill-id) is kept, unless it is the consumed
// message's, or another output's: metadata that was copied along must not make two messages one.
func stamp(ctx context.Context, consumed producer.Header, returned []*message.Message) ([]dedupstore.Produced, error) {
	key := oncemill.FromContext(ctx).Key
	topic := message.PublishTopicFromCtx(ctx)
	produced := make([]dedupstore.Produced, len(returned))
	used := map[string]int{}
	for i, m := range returned {
		if m == nil {
			// The effect has happened, and another run would return the same.
			return nil, oncemill.Permanent(fmt.Errorf("consumer: output %d is nil", i))
		}
		header := maps.Clone(map[string]string(m.Metadata))
		if header == nil {
			header = map[string]string{}
		}
		name, id := producer.Header(header).Get(producer.HeaderName), producer.Header(header).Get(producer.HeaderID)
		maps.DeleteFunc(header, func(name, _ string) bool { return copyHeader(name) || strings.EqualFold(name, producer.HeaderID) })
		if id == "" || id == consumed.Get(producer.HeaderID) {
			id = outputID(key, topic, name, i, used)
		} else if used["id "+id]++; used["id "+id] > 1 {
			id = outputID(key, topic, id, i, used)
		}
		header[producer.HeaderID] = id
		telemetry.Inject(ctx, header)
		produced[i] = dedupstore.Produced{ID: id, Topic: topic, Header: header, Payload: m.Payload}
	}
	return produced, nil
}

// outputID derives an output's ID. Outputs that share a name are told apart by their order among themselves.
func outputID(key dedupstore.Key, topic, name string, index int, used map[string]int) string {
	kind, value := "index", strconv.Itoa(index)
	if name != "" {
		kind, value = "name", name
		if n := used["name "+name]; n > 0 {
			value = strconv.Itoa(n) + " " + name
			kind = "repeated name"
		}
		used["name "+name]++
	}
	return ids.Derive("oncemill/output", key.Tenant, key.Group, key.Handler, key.ID, topic, kind, value)
}

// outputs turns produced messages into what the Router publishes. Those of a run of this delivery keep the context
// values that the handler gave them, without its cancellation: the run is over.
func outputs(produced []dedupstore.Produced, returned []*message.Message) []*message.Message {
	messages := make([]*message.Message, len(produced))
	for i, p := range produced {
		m := message.NewMessage(p.ID, p.Payload)
		maps.Copy(m.Metadata, p.Header)
		if len(returned) == len(produced) {
			m.SetContext(context.WithoutCancel(returned[i].Context()))
		}
		messages[i] = m
	}
	return messages
}
