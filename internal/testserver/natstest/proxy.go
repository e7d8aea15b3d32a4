package natstest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A Fault is what a [Proxy] does to a message to a client, or to what a client sends. The zero value does nothing.
type Fault struct {
	Drop  bool          // the client never gets the message: the server has done what it answers. Only of messages.
	Delay time.Duration // it comes later, and so does all behind it
}

// A Proxy is a TCP proxy before a NATS server that loses and delays answers, and delays requests.
type Proxy struct {
	testserver.Bridge
	t                testing.TB
	answers          atomic.Pointer[func() Fault]
	requests         atomic.Pointer[func() Fault]
	dropped, delayed atomic.Int64
}

// StartProxy starts a proxy before a server, which works faithfully until told otherwise, and stops when the test ends.
func StartProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	p := &Proxy{t: t}
	p.Start(t, s.server.Addr().String(), p.serve)
	return p
}

// Connect returns a new connection through the proxy, as [Server.Connect] does.
func (p *Proxy) Connect(options ...nats.Option) *nats.Conn {
	p.t.Helper()
	return connectNATS(p.t, []string{"nats://" + p.Addr}, options...)
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

func (p *Proxy) serve(client, server net.Conn) {
	p.Go(func() {
		p.forward(server, client)
		server.Close()
	})
	p.answer(client, server)
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
		p.Sleep(f.Delay)
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
