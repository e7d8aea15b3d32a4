package natstest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A Fault is what a [Proxy] does to a message to a client, or to what a client sends. The zero value does nothing.
type Fault struct {
	Drop  bool          // the client never gets the message: the server has done what it answers. Only of messages.
	Delay time.Duration // it comes later, and so does all behind it
}

// A Proxy is a TCP proxy before a NATS server that loses and delays answers, and delays requests.
type Proxy struct {
	t                testing.TB
	addr, target     string
	answers          atomic.Pointer[func() Fault]
	requests         atomic.Pointer[func() Fault]
	dropped, delayed atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
	ended bool
	tasks sync.WaitGroup
}

// StartProxy starts a proxy before a server, which works faithfully until told otherwise, and stops when the test ends.
func StartProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: proxy: %v", err)
	}
	p := &Proxy{t: t, addr: l.Addr().String(), target: s.server.Addr().String()}
	p.tasks.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.ended = true
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.tasks.Wait()
	})
	return p
}

// Connect returns a new connection through the proxy, as [Server.Connect] does.
func (p *Proxy) Connect(options ...nats.Option) *nats.Conn {
	p.t.Helper()
	return connectNATS(p.t, []string{"nats://" + p.addr}, options...)
}

// Inject sets what happens from now on to each message to a client, and to what clients send; nil: nothing. The
// functions are called by several goroutines.
func (p *Proxy) Inject(answers, requests func() Fault) {
	p.answers.Store(&answers)
	p.requests.Store(&requests)
}

// Dropped is how many messages clients did not get.
func (p *Proxy) Dropped() int { return int(p.dropped.Load()) }

// Delayed is how many messages and requests came later.
func (p *Proxy) Delayed() int { return int(p.delayed.Load()) }

// track makes a connection known to the end of the test.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		c.Close()
		return false
	}
	p.conns = append(p.conns, c)
	return true
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	if !p.track(client) || !p.track(server) {
		client.Close()
		return
	}
	p.tasks.Go(func() {
		p.forward(server, client)
		server.Close()
	})
	p.answer(client, server)
	client.Close()
}

// fault asks what happens, and waits for it.
func (p *Proxy) fault(ask *atomic.Pointer[func() Fault]) Fault {
	inject := ask.Load()
	if inject == nil || *inject == nil {
		return Fault{}
	}
	f := (*inject)()
	if f.Delay > 0 {
		p.delayed.Add(1)
		time.Sleep(f.Delay)
	}
	return f
}

func (p *Proxy) forward(server, client net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.fault(&p.requests)
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answer understands the protocol so far as to tell messages from other lines.
func (p *Proxy) answer(client, server net.Conn) {
	r := bufio.NewReader(server)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		fields := bytes.Fields(line)
		if op := string(fields[0]); op == "MSG" || op == "HMSG" {
			size, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err != nil {
				return
			}
			payload := make([]byte, size+len("\r\n"))
			if _, err := io.ReadFull(r, payload); err != nil {
				return
			}
			if p.fault(&p.answers).Drop {
				p.dropped.Add(1)
				continue
			}
			line = append(line, payload...)
		}
		if _, err := client.Write(line); err != nil {
			return
		}
	}
}
