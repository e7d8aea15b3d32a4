package mysqltest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A Fault is what a [Proxy] does to one command and its reply. The zero value does nothing.
type Fault struct {
	// Freeze delays the command on its way to the server. It arrives even if the client has gone.
	Freeze time.Duration

	// Drop closes the client's connection instead of giving it the reply: the server has done the work.
	Drop bool

	// Delay delays the reply.
	Delay time.Duration
}

// A Proxy is a TCP proxy before a server that loses replies and delays. It knows enough of the protocol to tell one
// command from the next. It counts what it did.
type Proxy struct {
	testserver.Bridge
	fault atomic.Pointer[func() Fault]
	stall atomic.Pointer[stall]

	commands, dropped, frozen, delayed, stalled atomic.Int64
}

// StartProxy starts a proxy before a server, which works faithfully until told otherwise, and stops when the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.Start(t, target, p.serve)
	return p
}

// Inject sets what happens to each command from now on; nil: nothing. The function is called concurrently.
func (p *Proxy) Inject(fault func() Fault) {
	if fault == nil {
		p.fault.Store(nil)
		return
	}
	p.fault.Store(&fault)
}

// A stall holds up one connection.
type stall struct {
	command []byte
	arrives bool
	over    chan struct{}
}

// Stall keeps waiting the connection with the next command that has this text, until over is called, which may be called
// again. If the command arrives, its answer does not; else the server hears nothing more of the connection, not even its
// end.
func (p *Proxy) Stall(command string, arrives bool) (over func()) {
	s := &stall{[]byte(command), arrives, make(chan struct{})}
	p.stall.Store(s)
	return sync.OnceFunc(func() {
		p.stall.CompareAndSwap(s, nil)
		close(s.over)
	})
}

// taken returns the stall that a packet meets, which is over for others then.
func (p *Proxy) taken(packet []byte) *stall {
	if s := p.stall.Load(); s != nil && bytes.Contains(packet, s.command) && p.stall.CompareAndSwap(s, nil) {
		p.stalled.Add(1)
		return s
	}
	return nil
}

// Stalled is how many connections were stalled so far.
func (p *Proxy) Stalled() int { return int(p.stalled.Load()) }

// Commands is how many commands were forwarded so far.
func (p *Proxy) Commands() int { return int(p.commands.Load()) }

// Dropped is how many replies were dropped so far.
func (p *Proxy) Dropped() int { return int(p.dropped.Load()) }

// Delayed is how many replies were delayed so far.
func (p *Proxy) Delayed() int { return int(p.delayed.Load()) }

// Frozen is how many commands were delayed so far.
func (p *Proxy) Frozen() int { return int(p.frozen.Load()) }

// serve forwards in both directions until one of them ends.
func (p *Proxy) serve(client, server net.Conn) {
	var replying atomic.Pointer[Fault] // to the command that is under way
	var stalled atomic.Pointer[stall]
	answered := make(chan struct{})
	p.Go(func() {
		defer close(answered)
		defer client.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if s := stalled.Load(); s != nil {
				p.Wait(s.over)
			}
			if f := replying.Swap(nil); f != nil && n > 0 {
				if f.Delay > 0 {
					p.delayed.Add(1)
					p.Sleep(f.Delay)
				}
				if f.Drop {
					p.dropped.Add(1)
					return
				}
			}
			if _, err2 := client.Write(b[:n]); err != nil || err2 != nil {
				return
			}
		}
	})
	p.commandsOf(client, server, &replying, &stalled)
	server.Close()
	<-answered
}

// commandsOf forwards packets. One with the number 0 begins a command.
func (p *Proxy) commandsOf(
	client, server net.Conn, replying *atomic.Pointer[Fault], stalled *atomic.Pointer[stall],
) {
	var head [4]byte
	for {
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return
		}
		size := binary.LittleEndian.Uint32([]byte{head[0], head[1], head[2], 0})
		packet := make([]byte, 4+size)
		copy(packet, head[:])
		if _, err := io.ReadFull(client, packet[4:]); err != nil {
			return
		}
		if s := p.taken(packet[4:]); s != nil && s.arrives {
			stalled.Store(s)
		} else if s != nil {
			p.Wait(s.over)
		}
		if decide := p.fault.Load(); decide != nil && head[3] == 0 {
			f := (*decide)()
			if f.Freeze > 0 {
				p.frozen.Add(1)
				p.Sleep(f.Freeze)
			}
			replying.Store(&f)
		}
		if head[3] == 0 {
			p.commands.Add(1)
		}
		if _, err := server.Write(packet); err != nil {
			return
		}
	}
}
