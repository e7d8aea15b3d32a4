package natsjs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A fetched is how a request for messages ended.
type fetched struct {
	asked    int
	got      int
	answered bool // the server has ended it, or has sent everything
	err      error
}

// A request asks the server once for messages (ADR-13 of NATS), and takes each where it comes: in the goroutine of its
// subscription.
type request struct {
	receive func(*nats.Msg, time.Time)
	nc      *nats.Conn
	sub     *nats.Subscription
	ended   chan struct{} // closed: the server has ended it

	mu    sync.Mutex
	f     fetched
	heard time.Time // when something came last
	over  bool      // what comes now is not taken
}

// fetch asks for n messages, and returns when they have come, or no more will.
func (f *fetcher) fetch(work context.Context, n int) fetched {
	receive := func(m *nats.Msg, now time.Time) {
		f.received(m.Size())
		f.inFlight.receive(work, m, now)
	}
	r := &request{receive: receive, nc: f.nc, ended: make(chan struct{}), f: fetched{asked: n}, heard: time.Now()}
	inbox := f.nc.NewInbox()
	sub, err := f.nc.Subscribe(inbox, r.take)
	if err != nil {
		return fetched{asked: n, answered: true, err: err}
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails where there is no connection any more
	r.sub = sub
	err = sub.SetPendingLimits(-1, -1) // nothing may be dropped, and n bounds it
	if err == nil {
		err = f.nc.PublishRequest(f.limits.nextSubject, inbox,
			fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, n, f.limits.expires.Nanoseconds()))
	}
	if err != nil {
		return fetched{asked: n, answered: true, err: err}
	}
	return r.wait(f.limits.expires + time.Second)
}

// wait returns when the request has ended, or nothing has come for so long and nothing is on its way: then the server
// does not answer.
func (r *request) wait(silence time.Duration) fetched {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-r.ended:
			return r.f
		case <-timer.C:
		}
		left := r.left(silence)
		if left <= 0 {
			r.arrive()
			if left = r.abandon(silence); left <= 0 {
				return r.f
			}
		}
		timer.Reset(left)
	}
}

// left is how much is left of so long a silence.
func (r *request) left(silence time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return silence - time.Since(r.heard)
}

// arrive returns when all that the server has sent is here, for the silence may be that of the network, or of this
// process: messages that are not taken come again after AckWait, behind others of their order keys.
func (r *request) arrive() {
	if r.nc.IsConnected() { // else nothing of it will come
		_ = r.nc.FlushTimeout(flushTimeout) // a connection that is silent for longer than that is given up
	}
}

// abandon ends the request, unless something has come within so long, or is here and not taken yet: then it returns for
// how long to go on.
func (r *request) abandon(silence time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if waiting, _, err := r.sub.Pending(); err == nil && waiting > 0 {
		return silence
	}
	left := silence - time.Since(r.heard)
	r.over = left <= 0
	return left
}

// take takes what the server sends.
func (r *request) take(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return // it comes again, after AckWait
	}
	r.heard = time.Now()
	if m.Reply == "" { // no message: a message says where its ack goes
		if over, err := ending(m); over {
			r.end(err)
		}
		return
	}
	r.receive(m, r.heard)
	if r.f.got++; r.f.got == r.f.asked {
		r.end(nil)
	}
}

// end has fetch return. The request is locked.
func (r *request) end(err error) {
	r.f.answered, r.f.err, r.over = true, err, true
	close(r.ended)
}

// ending reports whether a status ends a request, and the error if it does not do so in the ordinary way.
func ending(m *nats.Msg) (over bool, err error) {
	switch status, text := m.Header.Get("Status"), m.Header.Get("Description"); status {
	case "100": // a heartbeat
		return false, nil
	case "404", "408": // there are no messages, in time
		return true, nil
	case "503":
		return true, nats.ErrNoResponders
	default:
		return true, fmt.Errorf("natsjs: the server ended a request for messages: %.200q (status %.20q)", text, status)
	}
}
