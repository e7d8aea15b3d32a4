package stocknats

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
)

// pushUnmarshaler and pullUnmarshaler mark what they decode with its origin. They never fail, as the adapters answer a
// failure with an ack or a crash: what cannot be decoded is marked as such. Without an inner unmarshaler they decode
// what wmnats.NATSMarshaler encodes.
type (
	pushUnmarshaler struct{ inner wmnats.Unmarshaler }
	pullUnmarshaler struct{ inner wmjetstream.Unmarshaler }
)

// Unmarshal never returns an error.
func (u pushUnmarshaler) Unmarshal(msg *nats.Msg) (*message.Message, error) {
	d := pushed(msg)
	return d.unmarshal(func() (*message.Message, error) {
		if u.inner == nil {
			return d.decode(), nil
		}
		return u.inner.Unmarshal(msg)
	}), nil
}

// A gatedUnmarshaler is the last place before the adapter hands a message over, and so where its gate is.
type gatedUnmarshaler struct {
	wmnats.Unmarshaler
	gate *gate
}

// Unmarshal gives back what comes after the end. The adapter forgets a message that cannot be decoded.
func (u gatedUnmarshaler) Unmarshal(msg *nats.Msg) (*message.Message, error) {
	decoded, err := u.Unmarshaler.Unmarshal(msg)
	if err == nil && !u.gate.pass() {
		_ = msg.NakWithDelay(giveBackDelay) // lost, it comes back at its ack deadline
		return nil, errShut
	}
	return decoded, err
}

// errShut is no error: a message came too late.
var errShut = errors.New("stocknats: the subscription has ended")

// A shutLogger does not log errShut.
type shutLogger struct{ watermill.LoggerAdapter }

// Error logs what is an error.
func (l shutLogger) Error(msg string, err error, fields watermill.LogFields) {
	if !errors.Is(err, errShut) {
		l.LoggerAdapter.Error(msg, err, fields)
	}
}

// Unmarshal never returns an error.
func (u pullUnmarshaler) Unmarshal(msg jetstream.Msg) (*message.Message, error) {
	d := pulled(msg)
	return d.unmarshal(func() (*message.Message, error) {
		if u.inner == nil {
			return d.decode(), nil
		}
		return u.inner.Unmarshal(msg)
	}), nil
}

// unmarshal returns what decode returns, with its origin, or says in the mark why there is nothing.
func (d delivery) unmarshal(decode func() (*message.Message, error)) (msg *message.Message) {
	defer func() {
		if v := recover(); v != nil { // it would end the process
			msg = d.undecodable(fmt.Errorf("unmarshaler panicked: %v", v))
		}
	}()
	msg, err := decode()
	switch {
	case err != nil:
		return d.undecodable(err)
	case msg == nil:
		return d.undecodable(fmt.Errorf("unmarshaler returned nothing"))
	}
	if msg.UUID == "" {
		msg.UUID = d.foreignID()
	}
	mark(msg, d.origin)
	return msg
}

func (d delivery) undecodable(err error) *message.Message {
	msg := message.NewMessage("", d.data)
	d.origin.Problem = err.Error()
	mark(msg, d.origin)
	return msg
}

// decode reads what wmnats.NATSMarshaler writes, and what others publish: of a header with several values it makes one,
// as RFC 9110 does. Headers of the server ("Nats-…") are left out: published again, they are orders to a stream.
func (d delivery) decode() *message.Message {
	msg := message.NewMessage(d.header.Get(wmnats.WatermillUUIDHdr), d.data)
	for name, values := range d.header {
		if name != wmnats.WatermillUUIDHdr && !strings.HasPrefix(strings.ToLower(name), "nats-") {
			msg.Metadata.Set(name, strings.Join(values, ", "))
		}
	}
	return msg
}

// foreignID is the ID that the header Nats-Msg-Id gives to a message without a UUID, as natsjs would extract it. It
// travels as the UUID, because a copy of the header makes a stream swallow what a handler publishes.
func (d delivery) foreignID() string {
	in := producer.Incoming{Header: producer.Header{nats.MsgIdHdr: d.header.Get(nats.MsgIdHdr)}, Origin: d.origin.Stream}
	if in.Header[nats.MsgIdHdr] == "" || in.Origin == "" {
		return ""
	}
	found, err := producer.ExtractNatsMsgID(in)
	if err != nil { // it cannot be used: the message has no ID
		return ""
	}
	return found.ID
}
