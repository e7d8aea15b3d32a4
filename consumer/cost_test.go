package consumer_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// Telemetry that nobody takes makes no garbage: these are the figures without it. Other tests must not run beside this one.
func TestProcess_WithoutAnSDKTelemetryAllocatesNothing(t *testing.T) {
	p := newProcessor(t, newStore(t), consumer.Config{})
	handle := func(context.Context) error { return nil }
	process := func(id string) {
		header := producer.Header{producer.HeaderID: id, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
		if d := p.Process(context.Background(), consumer.Delivery{Handler: "charge", Topic: "orders", Count: 1, Header: header, Payload: []byte("x")}, handle); d.Action != consumer.Ack {
			t.Fatal(d)
		}
	}
	n := 0
	fresh := func() string { n++; return strconv.Itoa(1_000_000 + n) }
	for name, c := range map[string]struct {
		run  func()
		most float64
	}{
		"a delivery":  {func() { process(fresh()) }, 33},
		"a duplicate": {func() { process("once") }, 18},
	} {
		if got := testing.AllocsPerRun(2000, c.run); got > c.most+1 { // the race detector's one
			t.Errorf("%s: %v allocations, want at most %v", name, got, c.most)
		}
	}
}
