package main

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"net"
	"sync"
	"sync/atomic"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// errLostAck says that the broker has a message, and the relay does not know it.
var errLostAck = errors.New("the acknowledgement was lost on its way")

// A forgetful publisher publishes, and loses the acknowledgement of some messages, once. The relay has to publish those
// again, with the same ID. It is safe for concurrent use.
type forgetful struct {
	producer.Publisher
	every int

	mu   sync.Mutex
	lost map[string]bool // by message ID
}

// Publish implements producer.Publisher.
func (f *forgetful) Publish(ctx context.Context, messages ...producer.Message) error {
	if err := f.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	var failures []producer.Failure
	for i, m := range messages {
		if f.loses(m.ID) {
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errLostAck, Unknown: true})
		}
	}
	if failures == nil {
		return nil
	}
	return &producer.PublishError{Failures: failures}
}

func (f *forgetful) loses(id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	if h.Sum32()%uint32(f.every) != 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	again := f.lost[id]
	f.lost[id] = true
	return !again
}

// A losingDialer makes connections that lose some acknowledgements of consumers: they go to a subject where nobody
// listens, and the server delivers the messages again.
type losingDialer struct{ every int }

// Dial implements nats.CustomDialer.
func (d *losingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: shop.AnswerTime}).DialContext(context.Background(), network, address) // NATS gives none
	if err != nil {
		return nil, err
	}
	return &losingConn{Conn: conn, every: int64(d.every)}, nil
}

type losingConn struct {
	net.Conn
	every int64
	seen  atomic.Int64
}

var (
	ackCommand  = []byte("PUB $JS.ACK.")
	lostCommand = []byte("PUB LOST.AC.") // of the same length
	endOfLine   = []byte("\r\n")
	ackPayload  = []byte("+ACK\r\n") // unlike that of messages in progress
)

// Write implements net.Conn. The client writes whole commands.
func (c *losingConn) Write(p []byte) (int, error) {
	out := p
	for from := 0; ; {
		i := bytes.Index(p[from:], ackCommand)
		if i < 0 {
			return c.Conn.Write(out)
		}
		at := from + i
		from = at + len(ackCommand)
		_, content, _ := bytes.Cut(p[from:], endOfLine)
		if !bytes.HasPrefix(content, ackPayload) || c.seen.Add(1)%c.every != 0 {
			continue
		}
		if &out[0] == &p[0] {
			out = bytes.Clone(p) // a writer must not change what it is given
		}
		copy(out[at:], lostCommand)
	}
}
