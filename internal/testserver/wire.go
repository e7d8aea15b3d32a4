package testserver

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A Wire is the network between one client and its servers. It can be cut, and it can break when the client says
// something. The zero value works.
type Wire struct {
	mu    sync.Mutex
	down  bool
	loses func(written []byte) bool
	conns map[*wireConn]struct{}
}

var errCut = errors.New("testserver: the network is cut")

// Dial connects, as net.Dial does. Clients of NATS take a Wire as their custom dialer.
func (w *Wire) Dial(network, addr string) (net.Conn, error) {
	return w.DialContext(context.Background(), network, addr)
}

// DialContext is Dial with a context.
func (w *Wire) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		raw.Close()
		return nil, errCut
	}
	c := &wireConn{raw, w}
	if w.conns == nil {
		w.conns = map[*wireConn]struct{}{}
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// Cut closes all connections and refuses new ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for c := range w.conns {
		c.Conn.Close()
	}
}

// Heal ends a cut.
func (w *Wire) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// Lose breaks a connection instead of sending what the function says yes to. Nil: all is sent.
func (w *Wire) Lose(what func(written []byte) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loses = what
}

// A wireConn is one connection.
type wireConn struct {
	net.Conn
	wire *Wire
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.wire.mu.Lock()
	lost := c.wire.loses != nil && c.wire.loses(b)
	c.wire.mu.Unlock()
	if lost {
		c.Conn.Close()
		return 0, errCut
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
