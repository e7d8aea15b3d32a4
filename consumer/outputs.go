package consumer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/producer"
)

// An OutputHandler does the work for one message, as a Handler does, and returns the messages that it produced. It has
// published none of them.
type OutputHandler func(ctx context.Context) ([]producer.Message, error)

// ProcessOutputs is Process for a handler with outputs. It stores them with the outcome, under IDs that follow from the
// consumed message, and the caller publishes them. If a decision to Ack has a Publication in its Result, publish
// Publication.Messages before you acknowledge the delivery. They may be those of an earlier run. Call Publication.Done
// when the broker has them, and Abandon when they could not be published. A caller that learns this only from an ack or
// a nack leaves both to Watch. No other decision has a Publication.
//
// In shadow mode, and where the policy bypasses the guard, Result.Bypassed is set. Nothing is stored or stamped then,
// and the caller publishes what the handler returned.
//
// An output's ID follows from the consumed message's key, the topic, and the output's name (header oncemill-name) or
// else its place among the outputs. An ID that the handler set is kept, unless it is the consumed message's or another
// output's. Otherwise a copied header would make two messages one.
func (p *Processor) ProcessOutputs(ctx context.Context, d Delivery, handle OutputHandler) Decision {
	in, ctx := p.inbound(ctx, d)
	return in.process(ctx, handle)
}

// do calls the handler. Its outputs are stored, where a record is kept.
func (h OutputHandler) do(ctx context.Context, in *inbound, recorded bool) (dedupstore.Outcome, error) {
	outputs, err := h(ctx)
	if err != nil || !recorded || len(outputs) == 0 {
		return dedupstore.Outcome{}, err
	}
	produced := stamp(ctx, in.delivery.Header, outputs)
	if inbox, ok := txctx.From[txctx.Carrier[dedupstore.Produced]](ctx); ok { // what the record need not hold
		if produced, err = inbox.Carry(ctx, produced); err != nil {
			return dedupstore.Outcome{}, oncemill.Permanent(
				fmt.Errorf("the handler's outputs cannot be published: %w", err))
		}
	}
	return dedupstore.Outcome{Produced: produced}, nil
}

func (OutputHandler) decided(ctx context.Context, in *inbound, d Decision) Decision {
	in.log(ctx, d)
	return d
}

// stamp turns what a handler returned into produced messages with IDs of their own. Headers are copied, not changed:
// the handler may have returned one message twice.
func stamp(ctx context.Context, consumed producer.Header, outputs []producer.Message) []dedupstore.Produced {
	key := oncemill.FromContext(ctx).Key
	produced := make([]dedupstore.Produced, len(outputs))
	used := map[string]int{}
	for i, m := range outputs {
		header := maps.Clone(m.Header)
		if header == nil {
			header = producer.Header{}
		}
		name, id := header.Get(producer.HeaderName), cmp.Or(m.ID, header.Get(producer.HeaderID))
		maps.DeleteFunc(header, func(name, _ string) bool {
			return copyHeader(name) || strings.EqualFold(name, producer.HeaderID) ||
				strings.EqualFold(name, producer.HeaderReruns)
		})
		telemetry.ForgetOther(header, producer.HeaderKey, m.Key) // of the consumed message; publishers refuse two keys
		if id == "" || id == consumed.Get(producer.HeaderID) {
			id = outputID(key, m.Topic, name, i, used)
		} else if used["id "+id]++; used["id "+id] > 1 {
			id = outputID(key, m.Topic, id, i, used)
		}
		header[producer.HeaderID] = id
		telemetry.Inject(ctx, header)
		produced[i] = dedupstore.Produced{ID: id, Topic: m.Topic, Key: m.Key, Header: header, Payload: m.Payload}
	}
	return produced
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
