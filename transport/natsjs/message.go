package natsjs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What the server is told of a message (ADR-15 of NATS).
var (
	sayAck      = []byte("+ACK")
	sayNak      = []byte("-NAK")
	sayProgress = []byte("+WPI")
)

func sayNakAfter(delay time.Duration) []byte {
	return append(strconv.AppendInt([]byte(`-NAK {"delay":`), delay.Nanoseconds(), 10), '}')
}

func sayTerm(reason string) []byte { return []byte("+TERM " + reason) }

// say tells the server something of a message, which is locked.
func (f *held) say(what []byte) error {
	if f.foreign {
		return errForeign
	}
	return f.nc.Publish(f.msg.Reply, what)
}

var errForeign = errors.New("natsjs: the consumer was deleted, or has lost what it had counted")

// disown has nothing said of a message any more.
func (f *held) disown() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled, f.foreign = true, true
}

func (f *held) isForeign() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.foreign
}

// A message is what handlers get.
type message struct{ *held }

var _ jetstream.Msg = message{}

func (m message) Subject() string      { return m.msg.Subject }
func (m message) Reply() string        { return m.msg.Reply }
func (m message) Headers() nats.Header { return m.msg.Header }
func (m message) Data() []byte         { return m.msg.Data }

func (m message) Metadata() (*jetstream.MsgMetadata, error) {
	d, err := m.msg.Metadata()
	if err != nil {
		return nil, err
	}
	return &jetstream.MsgMetadata{
		Sequence:     jetstream.SequencePair(d.Sequence),
		NumDelivered: d.NumDelivered,
		NumPending:   d.NumPending,
		Timestamp:    d.Timestamp,
		Stream:       d.Stream,
		Consumer:     d.Consumer,
		Domain:       d.Domain,
	}, nil
}

func (m message) InProgress() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled {
		return jetstream.ErrMsgAlreadyAckd
	}
	return m.say(sayProgress)
}

func (message) Ack() error                       { return ErrWorkerSettles }
func (message) DoubleAck(context.Context) error  { return ErrWorkerSettles }
func (message) Nak() error                       { return ErrWorkerSettles }
func (message) NakWithDelay(time.Duration) error { return ErrWorkerSettles }
func (message) Term() error                      { return ErrWorkerSettles }
func (message) TermWithReason(string) error      { return ErrWorkerSettles }
