package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A link stands before a Redis server, at an address that the server announces as its own, and passes bytes both ways.
// What the server sends to its replicas can be held back: the connection stays open, and the replicas go on telling the
// server that they are there.
type link struct {
	port   int
	target string // of the server, set before the first connection is passed

	mu     sync.Mutex
	frozen bool
	conns  map[net.Conn]struct{}
	gate   sync.RWMutex // locked for writing while held: it is taken for each write to a replica
	tasks  sync.WaitGroup
}

// newLink takes an address. The link ends with the test.
func newLink(t testing.TB) (*link, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: link: %v", err)
	}
	k := &link{port: l.Addr().(*net.TCPAddr).Port, conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() {
		l.Close()
		k.cut()
		k.release()
		k.tasks.Wait()
	})
	return k, l
}

// start passes connections on to the target.
func (k *link) start(l net.Listener, target string) {
	k.target = target
	k.tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.tasks.Go(func() { k.pass(c) })
		}
	})
}

// hold lets nothing more through to replicas. When it returns, nothing is on its way.
func (k *link) freeze() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.frozen {
		k.gate.Lock()
		k.frozen = true
	}
}

// release ends a hold: what was held arrives, unless its connection was cut.
func (k *link) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.frozen {
		k.gate.Unlock()
		k.frozen = false
	}
}

// cut closes every connection. What was held in them is lost.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		c.Close()
	}
}

func (k *link) track(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[c] = struct{}{}
}

func (k *link) drop(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	c.Close()
}

// pass connects a client, which may be a replica, with the server.
func (k *link) pass(client net.Conn) {
	k.track(client)
	defer k.drop(client)
	server, err := net.DialTimeout("tcp", k.target, time.Second)
	if err != nil {
		return
	}
	k.track(server)
	defer k.drop(server)
	var replica atomic.Bool
	var up sync.WaitGroup
	up.Go(func() {
		copyBytes(server, client, func(chunk []byte, write func()) {
			if bytes.Contains(chunk, []byte("REPLCONF\r\n")) || bytes.Contains(chunk, []byte("PSYNC\r\n")) {
				replica.Store(true)
			}
			write()
		})
		server.Close() // ends the other direction
	})
	copyBytes(client, server, func(_ []byte, write func()) {
		if replica.Load() {
			k.gate.RLock()
			defer k.gate.RUnlock()
		}
		write()
	})
	client.Close()
	up.Wait()
}

// copyBytes copies until either side ends; each chunk is written by the given function.
func copyBytes(to, from net.Conn, each func(chunk []byte, write func())) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			var failed error
			each(buffer[:n], func() { _, failed = to.Write(buffer[:n]) })
			if failed != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
