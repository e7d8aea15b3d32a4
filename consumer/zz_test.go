package consumer_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

func BenchmarkStart(b *testing.B) {
	p := newProcessor(b, newStore(b), consumer.Config{})
	handle := func(context.Context) error { return nil }
	b.ReportAllocs()
	sem := make(chan struct{}, 256)
	ctx := context.Background()
	for i := range b.N {
		sem <- struct{}{}
		header := producer.Header{producer.HeaderID: strconv.Itoa(i)}
		p.Start(ctx, consumer.Delivery{Handler: "charge", Topic: "orders", Count: 1, Header: header, Payload: []byte("x")}, handle, func(consumer.Decision) { <-sem })
	}
	for range 256 {
		sem <- struct{}{}
	}
}
