package natsjs

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/natswire"
	"github.com/oncemill/oncemill/producer"
)

// An encoder holds a message for NATS: one after the other, in the same memory.
type encoder struct {
	message nats.Msg
	values  []string // one piece of memory for all lists of one value
}

// encode makes its message that of a stamped one, and returns the ID by which a stream deduplicates.
func (e *encoder) encode(m producer.Message) (id string, err error) {
	if e.message.Header == nil {
		e.message.Header = make(nats.Header, len(m.Header)+2)
	}
	clear(e.message.Header)
	e.message.Subject, e.message.Data, e.values = m.Topic, m.Payload, e.values[:0]
	if id, err = natswire.Encode("natsjs", &m, e.set); err != nil {
		return "", err
	}
	e.set(jetstream.MsgIDHeader, id)
	return id, nil
}

func (e *encoder) set(name, value string) {
	e.values = append(e.values, value)
	n := len(e.values)
	e.message.Header[name] = e.values[n-1 : n : n]
}
