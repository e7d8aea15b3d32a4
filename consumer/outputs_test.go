package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/producer"
)

// receipts is a handler that produces two messages.
func receipts(runs *int) consumer.OutputHandler {
	return func(context.Context) ([]producer.Message, error) {
		*runs++
		return []producer.Message{
			{Topic: "receipts", Key: "customer 7", Header: producer.Header{"color": "red"}, Payload: []byte("receipt")},
			{Topic: "mails", Header: producer.Header{producer.HeaderName: "mail"}},
		}, nil
	}
}

func TestProcessOutputs_AreTheCallersToPublishUntilTheyArePublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, runs := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait}), 0
		first := p.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs))
		if first.Action != consumer.Ack || first.Result.Publication == nil {
			t.Fatalf("%+v, want outputs to publish", first)
		}
		outputs := first.Result.Publication.Messages()
		if m := outputs[0]; m.Topic != "receipts" || m.Key != "customer 7" || m.Header["color"] != "red" || m.Header[producer.HeaderID] != m.ID || m.ID == "" {
			t.Errorf("output %+v", m)
		}
		busy := p.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs))
		answertest.Want(t, busy.Err, oncemill.StatusBusy, oncemill.StatusNotDue)
		time.Sleep(first.Result.Publication.Abandon())
		again := p.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs))
		if again.Result.Publication == nil || again.Result.Publication.Messages()[1].ID != outputs[1].ID {
			t.Fatalf("%+v, want the same outputs again", again)
		}
		if err := again.Result.Publication.Done(); err != nil {
			t.Fatal(err)
		}
		if done := p.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs)); done.Action != consumer.Ack || done.Result.Publication != nil {
			t.Errorf("%+v, want a duplicate", done)
		}
		if runs != 1 {
			t.Errorf("%d runs, want 1", runs)
		}
	})
}

// A handler may copy the header of the message that it got. Its output's own Key counts, and publishers refuse two.
func TestProcessOutputs_TheKeyOfTheConsumedMessageStaysBehind(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		d := delivery("o1")
		d.Header["Oncemill-Key"] = "customer 6"
		for _, c := range []struct{ key, want string }{{"customer 7", ""}, {"customer 6", "customer 6"}, {"", "customer 6"}} {
			d.Header[producer.HeaderID] = "o" + c.key
			first := p.ProcessOutputs(t.Context(), d, func(context.Context) ([]producer.Message, error) {
				return []producer.Message{{Topic: "receipts", Key: c.key, Header: d.Header}}, nil
			})
			if first.Result.Publication == nil {
				t.Fatalf("%+v, want outputs to publish", first)
			}
			if m := first.Result.Publication.Messages()[0]; m.Key != c.key || m.Header["Oncemill-Key"] != c.want {
				t.Errorf("key %q: output %+v", c.key, m)
			}
		}
	})
}

func TestWatch_RecordsWhatAnAckOrANackSays(t *testing.T) {
	for name, tc := range map[string]struct {
		ack, nack, close, again bool
	}{
		"acked":  {ack: true},
		"nacked": {nack: true, again: true},
		"closed": {close: true, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, runs := newStore(t), 0
				p := newProcessor(t, store, consumer.Config{})
				acked, nacked := make(chan struct{}), make(chan struct{})
				if tc.close {
					if err := p.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				d := p.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs))
				if err := p.Watch(t.Context(), delivery("o1"), d.Result.Publication, acked, nacked); (err != nil) != tc.close {
					t.Fatal(err)
				}
				switch {
				case tc.ack:
					close(acked)
				case tc.nack:
					close(nacked)
				}
				synctest.Wait()
				time.Sleep(time.Minute)
				other := newProcessor(t, store, consumer.Config{})
				d = other.ProcessOutputs(t.Context(), delivery("o1"), receipts(&runs))
				if again := d.Result.Publication != nil; d.Action != consumer.Ack || again != tc.again {
					t.Errorf("%+v, want the outputs again: %t", d, tc.again)
				}
				if d.Result.Publication != nil {
					if err := d.Result.Publication.Done(); err != nil {
						t.Error(err)
					}
				}
				if runs != 1 {
					t.Errorf("%d runs, want 1", runs)
				}
			})
		})
	}
}

// Outputs that nobody records are the caller's to publish as the handler left them.
func TestProcessOutputs_WithoutARecordNothingIsStored(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			policy oncemill.Policy
			header producer.Header
		}{
			"shadow": {oncemill.Policy{Shadow: true}, producer.Header{producer.HeaderID: "o1"}},
			"bypass": {oncemill.Policy{MissingID: oncemill.MissingIDBypass}, nil},
		} {
			p, runs := newProcessor(t, newStore(t), consumer.Config{Policy: c.policy}), 0
			d := p.ProcessOutputs(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders", Header: c.header}, receipts(&runs))
			if d.Action != consumer.Ack || d.Result.Publication != nil || !d.Result.Bypassed || runs != 1 {
				t.Errorf("%s: %+v after %d runs", name, d, runs)
			}
		}
	})
}

// A context may outlive its delivery; only the very same message under its own guard is guarded twice.
func TestProcess_OneDeliveryEntersOneGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		type message struct{ id string }
		one, other := &message{"one"}, &message{"other"}
		for name, tc := range map[string]struct {
			outer, inner any
			twice        bool
		}{
			"without an identity": {nil, nil, true},
			"one message":         {one, one, true},
			"another message":     {one, other, false},
		} {
			p := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait})
			d, inner := delivery("o1"), delivery("o1")
			d.Message, inner.Message = tc.outer, tc.inner
			var within error
			p.Process(t.Context(), d, func(ctx context.Context) error {
				within = p.Process(ctx, inner, failing(nil)).Err
				return nil
			})
			if errors.Is(within, consumer.ErrGuardedTwice) != tc.twice {
				t.Errorf("%s: %v, want it to be guarded twice: %t", name, within, tc.twice)
			}
		}
	})
}
