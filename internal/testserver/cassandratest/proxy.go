package cassandratest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A Fault is what a [Proxy] does to one exchange, a statement and its reply. The zero value does nothing.
type Fault struct {
	// HoldRequest delays the statement on its way to the node. It arrives even if the client has given up.
	HoldRequest time.Duration

	// DropReply keeps the reply from the client: the node has done the work.
	DropReply bool

	// DelayReply delays the reply.
	DelayReply time.Duration

	// Refuse answers with this code of an error, such as gocql.ErrCodeOverloaded. The node does not get the statement,
	// but with DropReply it has done it.
	Refuse int
}

// A Proxy is a TCP proxy before a node. It understands version 4 of the protocol, and counts what it did.
type Proxy struct {
	testserver.Bridge
	t              testing.TB
	server         *Server
	fault          atomic.Pointer[func() Fault]
	statements     atomic.Int64
	dropped, moved atomic.Int64
}

// StartProxy starts a proxy before a node, which works faithfully until told otherwise, and stops when the test ends.
func StartProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	p := &Proxy{t: t, server: s}
	p.Start(t, s.Addr, p.serve)
	return p
}

// Session returns a new session through the proxy, as [Server.Session] does.
func (p *Proxy) Session(configure ...func(*gocql.ClusterConfig)) *gocql.Session {
	p.t.Helper()
	through := func(c *gocql.ClusterConfig) {
		c.Hosts, c.ProtoVersion, c.DisableInitialHostLookup = []string{p.Addr}, 4, true
	}
	return p.server.Session(p.t, append([]func(*gocql.ClusterConfig){through}, configure...)...)
}

// Inject sets what happens to each statement from now on; nil: nothing. The function is called by several goroutines.
func (p *Proxy) Inject(fault func() Fault) {
	if fault == nil {
		fault = func() Fault { return Fault{} }
	}
	p.fault.Store(&fault)
}

// Statements is how many statements came so far.
func (p *Proxy) Statements() int { return int(p.statements.Load()) }

// Dropped is how many replies were kept from clients so far.
func (p *Proxy) Dropped() int { return int(p.dropped.Load()) }

// Delayed is how many statements and replies were delayed so far.
func (p *Proxy) Delayed() int { return int(p.moved.Load()) }

func (p *Proxy) serve(client, server net.Conn) {
	l := &link{proxy: p, client: client, server: server, faults: map[uint16]Fault{}}
	p.Go(func() {
		l.forward()
		server.Close()
	})
	l.answer()
}

// A link is one client's connection.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu                 sync.Mutex
	faults             map[uint16]Fault // of statements that are not answered, by stream
	toClient, toServer sync.Mutex
}

// Parts of a frame, and kinds of them.
const (
	headSize  = 9
	opError   = 0x00
	opQuery   = 0x07
	opExecute = 0x0A
	reply     = 0x84
)

func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	frame := append(head, make([]byte, binary.BigEndian.Uint32(head[5:]))...)
	_, err := io.ReadFull(r, frame[headSize:])
	return frame, err
}

func stream(frame []byte) uint16 { return binary.BigEndian.Uint16(frame[2:]) }

// write writes a frame, after a while. Others may overtake it.
func (l *link) write(to net.Conn, mu *sync.Mutex, frame []byte, after time.Duration) {
	write := func() {
		mu.Lock()
		defer mu.Unlock()
		_, _ = to.Write(frame)
	}
	if after == 0 {
		write()
		return
	}
	l.proxy.moved.Add(1)
	l.proxy.Go(func() {
		<-time.After(after)
		write()
	})
}

func (l *link) forward() {
	for {
		frame, err := readFrame(l.client)
		if err != nil {
			return
		}
		var f Fault
		if op := frame[4]; op == opQuery || op == opExecute {
			l.proxy.statements.Add(1)
			if inject := l.proxy.fault.Load(); inject != nil {
				f = (*inject)()
			}
		}
		if f.Refuse != 0 && !f.DropReply {
			l.write(l.client, &l.toClient, refusal(stream(frame), f.Refuse), 0)
			continue
		}
		l.mu.Lock()
		l.faults[stream(frame)] = f
		l.mu.Unlock()
		l.write(l.server, &l.toServer, frame, f.HoldRequest)
	}
}

func (l *link) answer() {
	for {
		frame, err := readFrame(l.server)
		if err != nil {
			return
		}
		l.mu.Lock()
		f := l.faults[stream(frame)]
		delete(l.faults, stream(frame))
		l.mu.Unlock()
		if f.DropReply {
			l.proxy.dropped.Add(1)
			if f.Refuse == 0 {
				continue
			}
			frame = refusal(stream(frame), f.Refuse)
		}
		l.write(l.client, &l.toClient, frame, f.DelayReply)
	}
}

// refusal is the frame of an error.
func refusal(stream uint16, code int) []byte {
	text := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	body := text(binary.BigEndian.AppendUint32(nil, uint32(code)), "refused by the proxy")
	const serial = uint16(gocql.Serial)
	numbers := func(n ...uint32) {
		body = binary.BigEndian.AppendUint16(body, serial)
		for _, n := range n {
			body = binary.BigEndian.AppendUint32(body, n)
		}
	}
	switch code {
	case gocql.ErrCodeUnavailable:
		numbers(2, 1)
	case gocql.ErrCodeWriteTimeout:
		numbers(0, 1)
		body = text(body, "CAS")
	case gocql.ErrCodeReadTimeout:
		numbers(0, 1)
		body = append(body, 0)
	}
	frame := []byte{reply, 0, 0, 0, opError}
	binary.BigEndian.PutUint16(frame[2:], stream)
	return append(binary.BigEndian.AppendUint32(frame, uint32(len(body))), body...)
}
