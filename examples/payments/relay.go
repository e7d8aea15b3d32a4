package main

import (
	"context"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// relay publishes what is in the outbox until ctx ends, and then drains.
func relay(ctx context.Context, store outbox.Store, pub producer.Publisher) error {
	r, err := outbox.NewRelay(store, pub, outbox.Config{
		PollInterval: 100 * time.Millisecond,                        // rows of other processes wait for this; the default is 1 s
		Backoff:      oncemill.Backoff{Min: 300 * time.Millisecond}, // the default is 1 s
		// What a relay held when it died is taken over after 6 s. The defaults suit brokers that fail over: 30 s, 1 min.
		PublishTimeout: 2 * time.Second, Lease: 6 * time.Second,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
