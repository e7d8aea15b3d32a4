package consumer_test

import (
	"errors"
	"testing"

	"github.com/oncemill/oncemill/internal/consumertest"
)

var (
	virtual      = consumertest.Virtual
	newStore     = consumertest.NewStore
	newProcessor = consumertest.NewProcessor
	logged       = consumertest.Logged
)

type (
	deadLetters = consumertest.DeadLetters
	lossy       = consumertest.Lossy
)

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}
