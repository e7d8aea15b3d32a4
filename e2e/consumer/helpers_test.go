package consumer_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

func newStore(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newProcessor(t testing.TB, store dedupstore.Store, c consumer.Config) *consumer.Processor {
	t.Helper()
	c.Group = "billing"
	c.Policy.Logger = slog.New(slog.DiscardHandler)
	p, err := consumer.New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func delivery(id string) consumer.Delivery {
	return consumer.Delivery{
		Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: id, "color": "blue"}, Payload: []byte("order " + id),
	}
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}
