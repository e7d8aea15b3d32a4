package pgstore

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A fault is what happens to one exchange between a client and PostgreSQL.
type fault int

const (
	faithful    fault = iota
	cutBefore         // the server never gets the request
	cutAfter          // the server gets it and answers, the client never hears it
	cutDuring         // the server gets it, the client's connection is cut soon after
	lateAfter         // the client's connection is cut, and the server gets the request later: see proxy.late
	lateRequest       // the server gets the request late
	lateAnswer        // the client gets the answer late
)

// A proxy stands before PostgreSQL and cuts connections.
type proxy struct {
	addr   *net.TCPAddr
	target string
	late   chan struct{} // closed: what was held goes on
	seen   atomic.Int64  // faults that were made
	decide atomic.Pointer[func(port int, request string) fault]
	begun  func() // waits until the server has begun with a request during which the connection is cut

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	tasks sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().(*net.TCPAddr), target: target, late: make(chan struct{}),
		conns: map[net.Conn]struct{}{}, begun: func() { lasts(full(100*time.Millisecond, 50*time.Millisecond)) }}
	p.tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.inject(nil)
		p.release()
		p.mu.Lock()
		for c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.tasks.Wait()
	})
	return p
}

// cancelRequest is what a connection begins with that only cancels what another one does.
const cancelRequest = 80877102

// inject sets what happens to requests, which are given as the bytes of their messages, and the port that the server
// sees.
func (p *proxy) inject(f func(port int, request string) fault) {
	if f == nil {
		p.decide.Store(nil)
		return
	}
	p.decide.Store(&f)
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.late:
	default:
		close(p.late)
	}
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

func (p *proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func (p *proxy) serve(client net.Conn) {
	p.track(client)
	defer p.forget(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.track(server)
	var swallow, late atomic.Bool
	p.tasks.Go(func() {
		defer p.forget(server)
		p.answers(client, server, &swallow, &late)
	})
	defer func() {
		if !swallow.Load() {
			server.Close()
		}
	}()
	startup, err := readMessage(client, false)
	// which clients send when they lose a connection
	if err != nil || binary.BigEndian.Uint32(startup[4:]) == cancelRequest {
		return
	}
	server.Write(startup)
	for {
		request, err := readRequest(client)
		if err != nil {
			return
		}
		f := faithful
		if decide := p.decide.Load(); decide != nil {
			f = (*decide)(server.LocalAddr().(*net.TCPAddr).Port, string(request))
		}
		if f != faithful {
			p.seen.Add(1)
		}
		switch f {
		case cutBefore:
			return
		case cutAfter:
			swallow.Store(true)
		case cutDuring:
			swallow.Store(true)
			server.Write(request)
			p.begun()
			return
		case lateAfter:
			p.forget(client)
			<-p.late
			swallow.Store(true)
		case lateRequest:
			<-p.late
		case lateAnswer:
			late.Store(true)
		}
		if _, err := server.Write(request); err != nil {
			return
		}
	}
}

// answers passes on what the server says.
func (p *proxy) answers(client, server net.Conn, swallow, late *atomic.Bool) {
	for {
		m, err := readMessage(server, true)
		if err != nil {
			client.Close()
			return
		}
		if late.Load() {
			<-p.late
		}
		if swallow.Load() {
			if m[0] == 'Z' {
				client.Close()
				return
			}
			continue
		}
		if _, err := client.Write(m); err != nil {
			continue // the server goes on
		}
	}
}

// readRequest reads messages up to one that the server answers.
func readRequest(r io.Reader) (request []byte, err error) {
	for {
		m, err := readMessage(r, true)
		if err != nil {
			return nil, err
		}
		request = append(request, m...)
		if bytes.IndexByte([]byte("QSXcdp"), m[0]) >= 0 {
			return request, nil
		}
	}
}

// readMessage reads a message, which begins with its type or, when a connection is new, with its length.
func readMessage(r io.Reader, typed bool) ([]byte, error) {
	head := make([]byte, 4)
	if typed {
		head = make([]byte, 5)
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	m := append(head, make([]byte, max(n, 0))...)
	_, err := io.ReadFull(r, m[len(head):])
	return m, err
}

// behind returns a pool whose connections go through a proxy, to the schema of another, and whose requests name what
// they call.
func behind(t testing.TB, direct *pgxpool.Pool, configure ...func(*pgxpool.Config)) (*pgxpool.Pool, *proxy) {
	t.Helper()
	cfg := direct.Config()
	p := newProxy(t, net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port))))
	pool := poolIn(t, cfg.ConnConfig.RuntimeParams["search_path"],
		append([]func(*pgxpool.Config){func(c *pgxpool.Config) {
			c.ConnConfig.Host, c.ConnConfig.Port = p.addr.IP.String(), uint16(p.addr.Port)
			c.ConnConfig.Fallbacks = nil
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}}, configure...)...)
	return pool, p
}
