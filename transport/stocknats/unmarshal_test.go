package stocknats_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// receive subscribes, sends, and returns the message as a Router gets it.
func (r *rig) receive(payload string, header nats.Header) *message.Message {
	r.t.Helper()
	sub := r.subscriber()
	r.t.Cleanup(func() { sub.Close() })
	messages, err := sub.Subscribe(r.t.Context(), "orders")
	if err != nil {
		r.t.Fatal(err)
	}
	r.send(payload, header)
	select {
	case msg := <-messages:
		msg.Ack()
		return msg
	case <-time.After(patience):
		r.t.Fatal("nothing came")
		return nil
	}
}

func TestStock_HeaderWithSeveralValuesArrivesAsOne(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter})
		msg := r.receive("x", nats.Header{"color": {"red", "blue"}, "empty": {}})
		if got := msg.Metadata.Get("color"); got != "red, blue" {
			t.Errorf("color %q", got)
		}
		r.settled()
	})
}

func TestStock_HeadersOfTheServerAndOfThisPackageStayBehind(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter})
		msg := r.receive("x", nats.Header{
			nats.MsgIdHdr: {"n1"}, "Nats-Custom": {"y"}, "_oncemill_delivery": {"forged"}, "ce-id": {"A-1"}, "ce-source": {"/shop"},
		})
		for name := range msg.Metadata {
			if !slices.Contains([]string{"ce-id", "ce-source"}, name) {
				t.Errorf("metadata %s = %q", name, msg.Metadata[name])
			}
		}
		if len(msg.Metadata) != 2 {
			t.Errorf("metadata %v", msg.Metadata)
		}
	})
}

func TestStock_ForeignIDsReachTheGuard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, consumer: consumer.Config{}})
		r.serve()
		r.send("from a NATS client", nats.Header{nats.MsgIdHdr: {"n1"}})
		r.send("a CloudEvent", nats.Header{"ce-id": {"A-1"}, "ce-source": {"/shop"}})
		r.send("a CloudEvent", nats.Header{"ce-id": {"A-1"}, "ce-source": {"/shop"}})
		until(t, "all", func() bool { return r.deliveries() == 3 })
		r.settled()
		r.wantRunsOnce([]string{"from a NATS client", "a CloudEvent"})
	})
}

func TestStock_MessageIDIsTheOneThatNatsjsFinds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter})
		msg := r.receive("x", nats.Header{nats.MsgIdHdr: {"n1"}})
		want, err := producer.Extract(producer.Incoming{Header: producer.Header{nats.MsgIdHdr: "n1"}, Topic: "orders", Origin: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		found, err := producer.Extract(producer.Incoming{Header: producer.Header(msg.Metadata), UUID: msg.UUID, Topic: "orders"})
		if err != nil || found.ID != want.ID {
			t.Errorf("ID %q, %v; want %q", found.ID, err, want.ID)
		}
	})
}

func TestStock_PositionReachesTheGuard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, consumer: consumer.Config{Extractors: []producer.Extractor{producer.ExtractPosition}}, handle: func(_ *message.Message, n int) error {
			if n == 1 {
				return errDeclined
			}
			return nil
		}})
		r.serve()
		r.send("without an ID", nil)
		until(t, "the second run", func() bool { return r.ran("without an ID") == 2 })
		r.settled()
	})
}

func TestStock_UndecodableMessageIsPutOffAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, decode: func(data []byte) error {
			switch string(data) {
			case "bad":
				return errors.New("no JSON")
			case "terrible":
				panic("nil map")
			}
			return nil
		}})
		r.serve()
		r.publish("bad", "terrible", "o1", "o2")
		until(t, "the others", func() bool { return r.ran("o1") == 1 && r.ran("o2") == 1 })
		until(t, "their acks, and a second try of the bad ones", func() bool {
			info := r.info()
			return info.NumAckPending == 2 && info.NumRedelivered == 2
		})
		if n := r.deliveries(); n != 2 {
			t.Errorf("%d messages reached the Router, want 2", n)
		}
		if !r.log.has("no JSON") || !r.log.has("nil map") {
			t.Error("nobody was told why")
		}
	})
}
