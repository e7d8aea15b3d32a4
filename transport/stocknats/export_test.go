package stocknats

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

// LookEvery sets how often subscriptions look at their consumers.
func LookEvery(s message.Subscriber, every time.Duration) { s.(*subscriber).lookEvery = every }

// ErrGone is what a look at a consumer finds when there is none.
var ErrGone = errGone

// Watch watches a consumer of which each look finds that it is well, or an error.
func Watch(ctx context.Context, look func() error) error {
	well := consumerSettings{durable: "billing", explicit: true}
	g := &gate{settings: well, look: func(context.Context) (consumerSettings, error) { return well, look() }}
	s := &subscription{subscriber: &subscriber{lookEvery: time.Second, nc: &nats.Conn{}, config: Config{Logger: slog.New(slog.DiscardHandler)}}, gate: g}
	return s.watch(ctx)
}
