package main

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/bench/internal/filled"
	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// records measures the inbox of each store beside many records, as a consumer uses it.
var records = kit.Records(filled.Inboxes, []kit.Operation[*filled.Store]{
	{Name: "fresh, 1 at once", Do: deliver(1, 8, freshKey)},
	{Name: "fresh, 16 at once", Do: deliver(16, 64, freshKey)},
	{Name: "duplicates, 16 at once", Do: deliver(16, 256, (*filled.Store).Done)},
})

func freshKey(*filled.Store) dedupstore.Key { return filled.Fresh().Key }

// deliver hands over so many messages. Their handler writes one row.
func deliver(
	atOnce, messages int, key func(*filled.Store) dedupstore.Key,
) func(context.Context, *filled.Store) (int, time.Duration, error) {
	return func(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
		of := s.Done()
		once, err := consumer.New(s.Inbox, consumer.Config{Tenant: of.Tenant, Group: of.Group})
		if err != nil {
			return 0, 0, err
		}
		load := kit.Load{Workers: atOnce, Messages: int64(messages)}
		took, _, err := load.Run(ctx, func(ctx context.Context, _ int64) (time.Duration, error) {
			id := key(s).ID
			d := once.Process(ctx, consumer.Delivery{
				Handler: of.Handler, Topic: "payments", Header: producer.Header{producer.HeaderID: id},
				Payload: []byte(filled.Payload), Count: 1,
			}, func(ctx context.Context) error { return s.Effect(ctx, id) })
			if d.Action != consumer.Ack || d.Err != nil {
				return 0, fmt.Errorf("message %s: %s, %w", id, d.Action, d.Err)
			}
			return 0, nil
		})
		return messages, took, err
	}
}
