package faults_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A kafkaNet is what lies between one client and its brokers. It can be cut, and it can falsify the replies to offset
// commits: the broker has done the work, and the client hears otherwise.
type kafkaNet struct {
	reply atomic.Pointer[func() commitReply] // asked for each reply to a commit; nil: they are passed on
	lied  atomic.Int64                       // replies that were not passed on as they were

	mu    sync.Mutex
	down  bool
	conns map[*kafkaConn]struct{}
}

// A commitReply is what becomes of the reply to an offset commit.
type commitReply struct {
	cut  bool  // the connection ends instead
	code int16 // an error code of the Kafka protocol, in place of success
}

func newKafkaNet() *kafkaNet { return &kafkaNet{conns: map[*kafkaConn]struct{}{}} }

// falsify sets what becomes of replies to commits.
func (n *kafkaNet) falsify(reply func() commitReply) { n.reply.Store(&reply) }

var errKafkaCut = errors.New("faults: the network is cut")

// dial is for kgo.Dialer.
func (n *kafkaNet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		raw.Close()
		return nil, errKafkaCut
	}
	c := &kafkaConn{Conn: raw, net: n, commits: map[uint32]int16{}}
	n.conns[c] = struct{}{}
	return c, nil
}

// cut closes every connection and refuses new ones.
func (n *kafkaNet) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for c := range n.conns {
		c.Conn.Close()
	}
}

// heal ends a cut.
func (n *kafkaNet) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}

// A kafkaConn is a connection of a client. It knows from the head of each request which replies answer commits. One
// goroutine reads and one writes, as kgo does.
type kafkaConn struct {
	net.Conn
	net *kafkaNet

	sent []byte // what was written of a request that is not complete
	rest []byte // what was read and is not handed over

	mu      sync.Mutex
	commits map[uint32]int16 // the version of each commit that is not answered, by correlation ID
}

func (c *kafkaConn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}

func (c *kafkaConn) Write(b []byte) (int, error) {
	c.sent = append(c.sent, b...)
	for len(c.sent) >= 12 { // size, key, version, correlation ID
		size := 4 + int(binary.BigEndian.Uint32(c.sent))
		if len(c.sent) < size {
			break
		}
		if key := int16(binary.BigEndian.Uint16(c.sent[4:])); key == kmsg.OffsetCommit.Int16() {
			c.mu.Lock()
			c.commits[binary.BigEndian.Uint32(c.sent[8:])] = int16(binary.BigEndian.Uint16(c.sent[6:]))
			c.mu.Unlock()
		}
		c.sent = c.sent[size:]
	}
	return c.Conn.Write(b)
}

func (c *kafkaConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		reply, err := c.next()
		if err != nil {
			return 0, err
		}
		c.rest = reply
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads one reply, and falsifies it if that is wanted.
func (c *kafkaConn) next() ([]byte, error) {
	head := make([]byte, 8) // size, correlation ID
	if _, err := io.ReadFull(c.Conn, head); err != nil {
		return nil, err
	}
	reply := slices.Concat(head, make([]byte, binary.BigEndian.Uint32(head)-4))
	if _, err := io.ReadFull(c.Conn, reply[8:]); err != nil {
		return nil, err
	}
	id := binary.BigEndian.Uint32(head[4:])
	c.mu.Lock()
	version, commit := c.commits[id]
	delete(c.commits, id)
	c.mu.Unlock()
	falsify := c.net.reply.Load()
	if !commit || falsify == nil {
		return reply, nil
	}
	switch what := (*falsify)(); {
	case what.cut:
		c.net.lied.Add(1)
		c.Conn.Close()
		return nil, io.EOF
	case what.code != 0:
		c.net.lied.Add(1)
		return failed(reply, version, what.code)
	}
	return reply, nil
}

// failed is a reply to a commit with an error code for each partition.
func failed(reply []byte, version, code int16) ([]byte, error) {
	r := kmsg.NewPtrOffsetCommitResponse()
	r.SetVersion(version)
	head := 8
	if r.IsFlexible() {
		head = 9 // no tags in the header
	}
	if err := r.ReadFrom(reply[head:]); err != nil {
		return nil, err
	}
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			r.Topics[i].Partitions[j].ErrorCode = code
		}
	}
	out := r.AppendTo(append([]byte(nil), reply[:head]...))
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}
