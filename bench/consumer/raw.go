package main

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// consumeRaw is the least that nats.go costs.
var consumeRaw = way{run: func(_ context.Context, j *task) (func() error, error) {
	cc, err := j.consumer.Consume(func(m jetstream.Msg) {
		j.handle()
		j.settle(m.Ack())
	}, jetstream.PullMaxMessages(1000))
	if err != nil {
		return nil, err
	}
	return func() error {
		cc.Stop()
		<-cc.Closed()
		return nil
	}, nil
}}
