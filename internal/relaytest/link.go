package relaytest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A Link is a loopback port before a server of any kind. It implements outboxtest.Link, and takes whatever comes from
// the server together for one answer.
type Link struct {
	testserver.Bridge

	mu     sync.Mutex
	left   int // answers until one does not arrive; 0: all arrive
	gone   bool
	silent chan struct{}
}

// StartLink starts a link, which works until told otherwise, and ends with the test.
func StartLink(t testing.TB, target string) *Link {
	t.Helper()
	l := &Link{}
	l.Start(t, target, l.pass)
	return l
}

// Silence implements outboxtest.Link.
func (l *Link) Silence(n int) <-chan struct{} { return l.cut(n, false) }

// Vanish implements outboxtest.Link.
func (l *Link) Vanish(n int) <-chan struct{} { return l.cut(n, true) }

func (l *Link) cut(n int, gone bool) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left, l.gone, l.silent = n, gone, make(chan struct{})
	return l.silent
}

// answer reports whether an answer arrives, and whether its client has vanished.
func (l *Link) answer() (arrives, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left--
	if l.left != 0 {
		return true, false
	}
	close(l.silent)
	return false, l.gone
}

// pass forwards in both directions until one of them ends.
func (l *Link) pass(client, server net.Conn) {
	vanished := make(chan struct{})
	answered := make(chan struct{})
	l.Go(func() {
		defer close(answered)
		defer client.Close()
		arrives := true
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if arrives {
				var gone bool
				if arrives, gone = l.answer(); gone {
					close(vanished)
				}
			}
			if arrives {
				if _, err := client.Write(b[:n]); err != nil {
					return
				}
			}
		}
	})
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		select {
		case <-vanished:
			l.Sleep(time.Hour) // the server hears nothing, until the test ends
			return
		default:
		}
		if err == nil {
			_, err = server.Write(b[:n])
		}
		if err != nil {
			break
		}
	}
	server.Close()
	<-answered
}
