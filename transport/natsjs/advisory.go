package natsjs

import (
	"context"
	"encoding/json"

	"github.com/nats-io/nats.go"
)

// watchMaxDeliveries logs and counts messages that the server gives up, until the function that it returns is called.
// They are told to everybody who listens, once.
func (e *engine) watchMaxDeliveries(ctx context.Context, l limits) (stop func()) {
	if l.maxDeliver == 0 {
		return func() {}
	}
	ctx = context.WithoutCancel(ctx)
	nc := e.js.Conn()
	subject := "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + l.stream + "." + l.consumer
	sub, err := nc.Subscribe(subject, func(msg *nats.Msg) {
		var advisory struct {
			Sequence   uint64 `json:"stream_seq"`
			Deliveries uint64 `json:"deliveries"`
		}
		err := json.Unmarshal(msg.Data, &advisory)
		e.maxDeliveries.Add(1)
		l.log.ErrorContext(ctx, "natsjs: the server gives a message up after MaxDeliver deliveries: it is in the "+
			"stream, and nobody gets it",
			"sequence", advisory.Sequence, "deliveries", advisory.Deliveries, "error", err)
	})
	if err != nil {
		return func() {} // the connection is closed: the run says so
	}
	return func() { _ = sub.Unsubscribe() } // it fails where the connection is closed, or the server has refused it
}
