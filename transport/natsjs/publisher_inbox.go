package natsjs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An inbox gets the answers to what a Publisher sends: to a subject for each message, which is never used again, because
// an answer may come when nobody waits for it any more. Its subscription ends with the connection.
type inbox struct {
	mu     sync.Mutex
	prefix string // of the subjects, with the dot; empty: there is no subscription yet
	calls  map[uint64]*call
	last   uint64             // that was given to a call
	lost   <-chan nats.Status // what breaks the connection; as the subscription, until the connection ends

	stream string // that answered last; only for the goroutine of the subscription
}

// open takes a call in.
func (b *inbox) open(conn *nats.Conn, c *call) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost == nil {
		b.lost = conn.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	}
	b.catchUp()
	if b.prefix == "" {
		prefix := conn.NewInbox() + "."
		if _, err := conn.Subscribe(prefix+"*", func(m *nats.Msg) { b.receive(prefix, m) }); err != nil {
			return fmt.Errorf("natsjs: subscribe to acknowledgements: %w", err)
		}
		b.prefix, b.calls = prefix, map[uint64]*call{}
	}
	b.last++
	c.id, c.lost = b.last, b.lost
	c.token = b.prefix + strconv.FormatUint(c.id, 36) + "-"
	b.calls[c.id] = c
	return nil
}

// catchUp hears what happened while nobody listened: it says nothing about messages that are still to be sent. The inbox
// is locked.
func (b *inbox) catchUp() {
	for {
		select {
		case status, open := <-b.lost:
			b.disconnected(status)
			if !open {
				return
			}
		default:
			return
		}
	}
}

// disconnected ends all flights: their answers were lost with the connection. The inbox is locked.
func (b *inbox) disconnected(status nats.Status) {
	err := nats.ErrDisconnected
	if status == nats.CLOSED {
		err = nats.ErrConnectionClosed
	}
	for _, c := range b.calls {
		c.landAll(err)
	}
}

func (b *inbox) close(c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, c.id)
}

// replySubject is where the answer to a message of a call goes.
func replySubject(token string, message int) string {
	subject := append(make([]byte, 0, 64), token...)
	return string(strconv.AppendInt(subject, int64(message), 36))
}

// receive brings an answer to its message, if somebody still waits for it.
func (b *inbox) receive(prefix string, m *nats.Msg) {
	token, ours := strings.CutPrefix(m.Subject, prefix)
	call, message, _ := strings.Cut(token, "-")
	id, err1 := strconv.ParseUint(call, 36, 64)
	i, err2 := strconv.ParseUint(message, 36, 31)
	if !ours || err1 != nil || err2 != nil {
		return
	}
	a, err := b.read(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.calls[id]; c != nil {
		c.answered(int(i), a, err)
	}
}

// An ack says where a stream has a message.
type ack struct {
	stream    string
	sequence  uint64
	duplicate bool
}

// read says what an answer means.
func (b *inbox) read(m *nats.Msg) (ack, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return ack{}, jetstream.ErrNoStreamResponse
	}
	if a, ok := b.readUsual(m.Data); ok {
		return a, nil
	}
	var answer struct {
		*jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return ack{}, jetstream.ErrInvalidJSAck
	case answer.Error != nil:
		return ack{}, answer.Error
	case answer.PubAck == nil || answer.Stream == "":
		return ack{}, jetstream.ErrInvalidJSAck
	}
	return ack{answer.Stream, answer.Sequence, answer.Duplicate}, nil
}

// readUsual reads what nearly all answers look like: {"stream":"orders","seq":1}. JSON takes as long as all the rest.
func (b *inbox) readUsual(data []byte) (ack, bool) {
	rest, begins := bytes.CutPrefix(data, []byte(`{"stream":"`))
	stream, rest, found := bytes.Cut(rest, []byte(`","seq":`))
	digits, ends := bytes.CutSuffix(rest, []byte("}"))
	if !begins || !found || !ends || len(stream) == 0 || bytes.ContainsAny(stream, `"\`) {
		return ack{}, false
	}
	sequence, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil || digits[0] == '0' {
		return ack{}, false
	}
	if string(stream) != b.stream {
		b.stream = string(stream)
	}
	return ack{stream: b.stream, sequence: sequence}, true
}
