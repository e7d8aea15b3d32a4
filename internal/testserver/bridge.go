package testserver

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A Bridge is a loopback port whose connections go on to a server, each through a function: what proxies are made of.
type Bridge struct {
	Addr string // host:port

	tasks sync.WaitGroup
	ended chan struct{} // closed when the test ends
	mu    sync.Mutex
	conns []net.Conn
}

// Start begins to listen. Pass is called with each connection and one to the target. Both are closed when it returns,
// and when the test ends, which waits for it.
func (b *Bridge) Start(t testing.TB, target string, pass func(client, server net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: proxy: %v", err)
	}
	b.Addr, b.ended = l.Addr().String(), make(chan struct{})
	b.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			b.Go(func() {
				defer client.Close()
				server, err := net.DialTimeout("tcp", target, WaitLimit)
				if err != nil {
					return
				}
				defer server.Close()
				if b.track(client, server) {
					pass(client, server)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		close(b.ended)
		for _, c := range b.conns {
			c.Close()
		}
		b.mu.Unlock()
		b.tasks.Wait()
	})
}

// track makes connections known to the end of the test. It reports false when that has come.
func (b *Bridge) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.ended:
		return false
	default:
		b.conns = append(b.conns, conns...)
		return true
	}
}

// Go runs a task, for which the end of the test waits.
func (b *Bridge) Go(task func()) { b.tasks.Go(task) }

// Wait waits until a channel is closed, at most until the test ends.
func (b *Bridge) Wait(over <-chan struct{}) {
	select {
	case <-over:
	case <-b.ended:
	}
}

// Sleep waits, at most until the test ends.
func (b *Bridge) Sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ended:
	}
}
