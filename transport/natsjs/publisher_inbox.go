package natsjs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An inbox gets the answers to what a Publisher sends: to a subject for each message, which is never used again,
// because an answer may come when nobody waits for it any more. Its last subscription ends with the connection.
type inbox struct {
	connecting sync.Mutex // held for what waits for the connection, before mu

	mu    sync.Mutex
	line  *line // nil: there is none yet
	old   *line // that was replaced, while calls wait for answers to it
	calls map[uint64]*call
	last  uint64             // that was given to a call
	lost  <-chan nats.Status // what breaks the connection; until the connection ends
}

// A line is a subscription to answers. One that the server has refused, because of a right or of its limit of
// subscriptions, stays refused until the connection is made again, and nobody is told but the connection: a silent one
// is replaced.
type line struct {
	inbox  *inbox
	prefix string // of the subjects, with the dot
	sub    *nats.Subscription
	silent bool   // an answer did not come in time, and none has come since
	last   uint64 // of the calls that wait for answers to it, once it is replaced

	stream string // that answered last; only for the goroutine of the subscription
}

// open takes a call in.
func (b *inbox) open(conn *nats.Conn, c *call) error {
	if err := b.connect(conn); err != nil {
		return fmt.Errorf("natsjs: subscribe to acknowledgements: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost == nil {
		b.lost, b.calls = conn.StatusChanged(nats.RECONNECTING, nats.CLOSED), map[uint64]*call{}
	}
	b.catchUp()
	b.last++
	c.id, c.line, c.lost = b.last, b.line, b.lost
	c.token = c.line.prefix + strconv.FormatUint(c.id, 36) + "-"
	b.calls[c.id] = c
	return nil
}

// connect sees to it that there is a line, and replaces one that is silent.
func (b *inbox) connect(conn *nats.Conn) error {
	b.connecting.Lock()
	defer b.connecting.Unlock()
	over, connected := b.look()
	if over != nil {
		_ = over.sub.Unsubscribe() // the connection is closed
	}
	if connected {
		return nil
	}
	l := &line{inbox: b, prefix: conn.NewInbox() + "."}
	var err error
	if l.sub, err = conn.Subscribe(l.prefix+"*", l.receive); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line != nil {
		b.old, b.line.last = b.line, b.last
	}
	b.line = l
	return nil
}

// look takes out the old line when no call waits for answers to it any more, and reports whether the other is to be
// used.
func (b *inbox) look() (over *line, connected bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := func(id uint64) bool { return id <= b.old.last }
	if b.old != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(b.calls)), waits) {
		over, b.old = b.old, nil
	}
	return over, b.line != nil && (!b.line.silent || b.old != nil)
}

// catchUp hears what happened while nobody listened: it says nothing about messages that are still to be sent. The
// inbox is locked.
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

// disconnected gives up all messages that wait: their answers were lost with the connection. The inbox is locked.
func (b *inbox) disconnected(status nats.Status) {
	err := nats.ErrDisconnected
	if status == nats.CLOSED {
		err = nats.ErrConnectionClosed
	}
	for _, c := range b.calls {
		c.overAll(err)
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
func (l *line) receive(m *nats.Msg) {
	token, ours := strings.CutPrefix(m.Subject, l.prefix)
	call, message, _ := strings.Cut(token, "-")
	id, err1 := strconv.ParseUint(call, 36, 64)
	i, err2 := strconv.ParseUint(message, 36, 31)
	if !ours || err1 != nil || err2 != nil {
		return
	}
	a, err := l.read(m)
	b := l.inbox
	b.mu.Lock()
	defer b.mu.Unlock()
	l.silent = false
	if c := b.calls[id]; c != nil {
		c.answered(int(i), a, err)
	}
}

// An ack says where a stream has a message.
type ack struct {
	stream    string
	sequence  uint64
	duplicate bool
	domain    string // empty: it says none
}

// read says what an answer means.
func (l *line) read(m *nats.Msg) (ack, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return ack{}, jetstream.ErrNoStreamResponse
	}
	if a, ok := l.readUsual(m.Data); ok {
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
	return ack{answer.Stream, answer.Sequence, answer.Duplicate, answer.Domain}, nil
}

// readUsual reads what nearly all answers look like: {"stream":"orders","seq":1}. JSON takes as long as all the rest.
func (l *line) readUsual(data []byte) (ack, bool) {
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
	if string(stream) != l.stream {
		l.stream = string(stream)
	}
	return ack{stream: l.stream, sequence: sequence}, true
}
