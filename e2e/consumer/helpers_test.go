package consumer_test

import (
	"errors"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

var newStore, newProcessor = consumertest.NewStore, consumertest.NewProcessor

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
