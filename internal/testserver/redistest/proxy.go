package redistest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Fault is what a [Proxy] does to one exchange, a request and its reply. The zero value does nothing.
type Fault struct {
	// HoldRequest delays the request on its way to the server. The request arrives even if the client has gone.
	HoldRequest time.Duration

	// DropReply closes the client's connection instead of giving it the reply: the server has done the work.
	DropReply bool

	// DelayReply delays the reply.
	DelayReply time.Duration
}

// An Exchange is a request that a [Proxy] is about to forward.
type Exchange struct {
	Number  int    // counts the proxy's exchanges from 1
	Request []byte // as the client sent it, in the Redis protocol; not to be kept or changed
}

// Has reports whether the request contains the word, without regard to ASCII case.
func (e Exchange) Has(word string) bool {
	return bytes.Contains(bytes.ToLower(e.Request), bytes.ToLower([]byte(word)))
}

// A Proxy is a TCP proxy before a Redis server that loses replies, delays, and cuts connections. It understands
// the protocol so far as to tell one request from the next. It counts what it did.
type Proxy struct {
	Addr string // host:port

	target string
	ended  chan struct{} // closed when the test ends
	fault  atomic.Pointer[func(Exchange) Fault]

	exchanges, dropped, frozen, delayed atomic.Int64

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
	tasks sync.WaitGroup
}

// StartProxy starts a proxy before a Redis server. It works faithfully until told otherwise, and stops when the test
// ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, ended: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.tasks.Go(func() { p.accept(l) })
	t.Cleanup(func() {
		close(p.ended)
		l.Close()
		p.Cut()
		p.tasks.Wait()
	})
	return p
}

// Inject sets what happens to each exchange from now on; nil: nothing. The function is called by one goroutine a
// connection, concurrently.
func (p *Proxy) Inject(fault func(Exchange) Fault) {
	if fault == nil {
		p.fault.Store(nil)
		return
	}
	p.fault.Store(&fault)
}

// Cut closes every connection and refuses new ones: to its clients the server is down.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.conns {
		c.Close()
	}
}

// Heal ends a Cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Exchanges is how many requests were forwarded so far.
func (p *Proxy) Exchanges() int { return int(p.exchanges.Load()) }

// Dropped is how many replies were dropped so far.
func (p *Proxy) Dropped() int { return int(p.dropped.Load()) }

// Frozen is how many requests were held back so far.
func (p *Proxy) Frozen() int { return int(p.frozen.Load()) }

// Delayed is how many replies were delayed so far.
func (p *Proxy) Delayed() int { return int(p.delayed.Load()) }

// track makes a connection known to Cut. It reports false, and closes the connection, when the proxy is down.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) untrack(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if p.track(c) {
			p.tasks.Go(func() {
				defer p.untrack(c)
				p.serve(c)
			})
		}
	}
}

// serve forwards exchanges one by one: what the client pipelines waits for its turn.
func (p *Proxy) serve(client net.Conn) {
	server, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil || !p.track(server) {
		return
	}
	defer p.untrack(server)
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		request, err := readValue(requests)
		if err != nil {
			return
		}
		fault := p.decide(request)
		if fault.HoldRequest > 0 {
			p.frozen.Add(1)
			p.sleep(fault.HoldRequest)
		}
		if _, err := server.Write(request); err != nil {
			return
		}
		reply, err := readValue(replies)
		if err != nil {
			return
		}
		if fault.DropReply {
			p.dropped.Add(1)
			return
		}
		if fault.DelayReply > 0 {
			p.delayed.Add(1)
			p.sleep(fault.DelayReply)
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

func (p *Proxy) decide(request []byte) Fault {
	n := p.exchanges.Add(1)
	if decide := p.fault.Load(); decide != nil {
		return (*decide)(Exchange{Number: int(n), Request: request})
	}
	return Fault{}
}

func (p *Proxy) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ended:
	}
}

// readValue reads one value of the Redis protocol, RESP 2 or 3, as it stands.
func readValue(r *bufio.Reader) ([]byte, error) {
	var value []byte
	for todo := 1; todo > 0; todo-- {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		value = append(value, line...)
		n := number(line)
		switch line[0] {
		case '$', '=', '!':
			if n < 0 {
				continue
			}
			bulk := make([]byte, n+2)
			if _, err := io.ReadFull(r, bulk); err != nil {
				return nil, err
			}
			value = append(value, bulk...)
		case '*', '~', '>':
			todo += max(n, 0)
		case '%':
			todo += 2 * max(n, 0)
		}
	}
	return value, nil
}

// number is the length in a line such as "$12\r\n".
func number(line []byte) int {
	n, digits := 0, bytes.TrimRight(line[1:], "\r\n")
	if len(digits) > 0 && digits[0] == '-' {
		return -1
	}
	for _, d := range digits {
		if d < '0' || d > '9' || n > 1<<30 {
			return 0
		}
		n = 10*n + int(d-'0')
	}
	return n
}
