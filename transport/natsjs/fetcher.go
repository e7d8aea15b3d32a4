package natsjs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// fetchWait is how long the server keeps a request for messages. The drain waits for it.
	fetchWait = time.Second

	// maxFetches bounds how many requests are outstanding.
	maxFetches = 4

	// smallFetches is how long room for less than two thirds of MaxInFlight waits for more. Asking for one message at a
	// time would cost more than the messages.
	smallFetches = 2 * time.Millisecond

	// bytesOnTheWay is how many bytes may be on the way to us. The server cuts a connection for which it holds more
	// than its max_pending, 64 MB, and would do so again and again. The server's limit of a request, max_bytes, does
	// not help. A message over it goes behind those that come again. A consumer of the last of each subject never gets
	// it.
	bytesOnTheWay = 4 << 20
)

// fetcher asks for messages, as many as there is room for.
type fetcher struct {
	*session
	inFlight *inFlight
	watcher  *watcher

	fetches sync.WaitGroup
	wake    chan struct{} // there may be room for a request
	ended   chan fetched  // as many as there are requests at once, so that nobody waits for a reader
	smallAt time.Time     // when to ask although there is little room; for pull alone

	mu          sync.Mutex
	outstanding int // requests
	coming      int // messages that they may still bring
	inside      int // messages in flight
	size        int // of large messages, in bytes; zero: not known yet
}

// pull asks for messages until ctx ends.
func (f *fetcher) pull(ctx, work context.Context) {
	t := trouble{fetcher: f}
	reconnected := f.nc.StatusChanged(nats.CONNECTED)
	defer f.nc.RemoveStatusListener(reconnected)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for ctx.Err() == nil {
		t.connection(ctx)
		select {
		case <-reconnected:
			f.lookAnew(ctx)
		default:
		}
		n, wait := f.room(time.Now(), t.until)
		if n > 0 {
			troubled := t.pause > 0
			f.fetches.Go(func() {
				if troubled && f.leaderIsAlone(ctx) {
					f.ended <- fetched{asked: n, err: errAlone}
				} else {
					f.ended <- f.fetch(work, n)
				}
			})
			continue
		}
		pace.Reset(wait)
		select {
		case <-ctx.Done():
		case <-pace.C:
		case <-f.wake:
		case <-reconnected:
			f.lookAnew(ctx)
		case r := <-f.ended:
			f.close(r)
			t.note(ctx, r)
		}
	}
}

// lookAnew looks at the consumer after a reconnect, before the fetcher asks for anything. The server may have been
// restored to an earlier time, which does not show any more when as many messages have been delivered again.
func (f *fetcher) lookAnew(ctx context.Context) {
	_, _ = f.watcher.look(ctx, 500*time.Millisecond) // without an answer, requests tell
}

// room takes room for the messages of a request: two thirds of what there may be, or whatever there is if nothing is
// outstanding. Without room it says after which time to look again.
func (f *fetcher) room(now, notBefore time.Time) (n int, wait time.Duration) {
	if wait := notBefore.Sub(now); wait > 0 {
		return 0, wait
	}
	if !f.nc.IsConnected() {
		return 0, minPause // a request would lie in a buffer, and reach the server when its answers go nowhere
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	free, small := f.free()
	switch {
	case free < 1:
		return 0, fetchWait // somebody wakes us
	case small && f.smallAt.IsZero():
		f.smallAt = now.Add(smallFetches)
		return 0, smallFetches
	case small && now.Before(f.smallAt):
		return 0, f.smallAt.Sub(now)
	}
	n = min(free, f.limits.batch)
	f.smallAt = time.Time{}
	f.coming += n
	f.outstanding++
	return n, 0
}

// close gives back the room of a request that is over.
func (f *fetcher) close(r fetched) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.coming -= r.asked - r.got
	f.outstanding--
}

// received notes that a message has come, and how large messages are: the largest, for some hundred others.
func (f *fetcher) received(size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.coming--
	f.inside++
	f.size = max(size, f.size-f.size/64)
}

// released notes that a message is not in flight any more.
func (f *fetcher) released() {
	f.mu.Lock()
	f.inside--
	free, _ := f.free()
	f.mu.Unlock()
	if free > 0 { // else the end of a request says more
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// free is how many messages a request may ask for now, and whether that is little. Messages to come are taken to be as
// large as those that have come, and the first as large as they can be. The fetcher is locked.
func (f *fetcher) free() (n int, small bool) {
	size := f.size
	if size == 0 {
		size = int(f.nc.MaxPayload())
	}
	onTheWay := max(1, bytesOnTheWay/max(1, size))
	n = min(f.limits.maxInFlight-f.inside, onTheWay) - f.coming
	small = 3*n < 2*min(f.limits.maxInFlight, onTheWay)
	// The server takes requests by turns. Only the messages of one request come in their order.
	full := f.outstanding >= f.limits.fetches || f.config.Order != nil && f.outstanding > 0
	if full || small && f.outstanding > 0 {
		return 0, small
	}
	return n, small
}

// A fetched is how a request for messages ended.
type fetched struct {
	asked int
	got   int
	err   error
}

// A request asks the server once for messages (ADR-13 of NATS), and takes each where it comes: in the goroutine of its
// subscription.
type request struct {
	fetcher *fetcher
	sub     *nats.Subscription
	ended   chan struct{} // closed: the server has ended it

	mu    sync.Mutex
	f     fetched
	heard time.Time // when something came last
	over  bool      // what comes now is not taken
}

// fetch asks for n messages, and returns when they have come, or no more will.
func (f *fetcher) fetch(work context.Context, n int) fetched {
	r := &request{fetcher: f, ended: make(chan struct{}), f: fetched{asked: n}, heard: time.Now()}
	inbox := f.nc.NewInbox()
	var err error
	if r.sub, err = f.nc.Subscribe(inbox, func(m *nats.Msg) { r.take(work, m) }); err != nil {
		return fetched{asked: n, err: err}
	}
	defer func() { _ = r.sub.Unsubscribe() }()            // it fails where there is no connection any more
	if err = r.sub.SetPendingLimits(-1, -1); err == nil { // nothing may be dropped, and n bounds it
		err = f.nc.PublishRequest(f.limits.nextSubject, inbox,
			fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, n, f.limits.expires.Nanoseconds()))
	}
	if err != nil {
		return fetched{asked: n, err: err}
	}
	return r.wait(f.limits.expires + time.Second)
}

// wait returns when the request has ended, or nothing has come for so long and nothing is on its way: then the server
// does not answer. The silence may be that of the network, or of this process: messages that are not taken come again
// after AckWait, behind others of their order keys.
func (r *request) wait(silence time.Duration) fetched {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-r.ended:
			return r.f
		case <-timer.C:
		}
		if nc := r.fetcher.nc; nc.IsConnected() { // else nothing of it will come
			_ = nc.FlushTimeout(flushTimeout) // a connection that is silent for longer than that is given up
		}
		if r.abandon(silence) {
			return r.f
		}
		timer.Reset(silence)
	}
}

// abandon ends the request, unless something has come within so long, or is here and not taken yet.
func (r *request) abandon(silence time.Duration) (over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting, _, err := r.sub.Pending()
	if !r.over && (err != nil || waiting == 0) && time.Since(r.heard) >= silence {
		r.over = true
		if r.f.got == 0 {
			r.f.err = errUnanswered
		}
	}
	return r.over
}

// take takes what the server sends.
func (r *request) take(work context.Context, m *nats.Msg) {
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
	r.fetcher.received(m.Size())
	r.fetcher.inFlight.receive(work, m, r.heard)
	if r.f.got++; r.f.got == r.f.asked {
		r.end(nil)
	}
}

// end has fetch return. The request is locked.
func (r *request) end(err error) {
	r.f.err, r.over = err, true
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
