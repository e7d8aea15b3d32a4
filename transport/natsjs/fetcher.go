package natsjs

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/internal/worker"
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

	// leastBytes is less than any message has, with its headers and the subject for its ack.
	leastBytes = 64
)

// fetcher asks for messages, as many as there is room for, and hands on what comes.
type fetcher struct {
	s *session

	fetches sync.WaitGroup
	wake    chan struct{}  // there may be room for a request
	ended   chan fetched   // as many as there are requests at once, so that nobody waits for a reader
	arrived chan *nats.Msg // what requests bring, in its order
	silent  chan *request  // a request that has brought nothing for long

	mu          sync.Mutex
	requests    map[*nats.Subscription]*request // that are outstanding
	idle        []*nats.Subscription            // of requests that are over
	outstanding int                             // requests
	coming      int                             // messages that they may still bring
	inside      int                             // messages in flight
	size        int                             // of large messages, in bytes; zero: not known yet
	smallAt     time.Time                       // when to ask although there is little room
	wakeAt      int                             // coming and inside, at which a request has room; -1: none waits
}

func newFetcher(s *session) fetcher {
	most := min(s.info.maxInFlight, bytesOnTheWay/leastBytes) + 64 // and what the server says of requests
	return fetcher{
		s: s, wake: make(chan struct{}, 1), ended: make(chan fetched, maxFetches), arrived: make(chan *nats.Msg, most),
		silent: make(chan *request), requests: map[*nats.Subscription]*request{},
	}
}

// pull asks for messages until ctx ends.
func (f *fetcher) pull(ctx context.Context) {
	e := fetchErrors{s: f.s}
	reconnected := f.s.nc.StatusChanged(nats.CONNECTED)
	defer f.s.nc.RemoveStatusListener(reconnected)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for ctx.Err() == nil {
		e.connection(ctx)
		select {
		case <-reconnected:
			f.reconnected(ctx)
		default:
		}
		n, wait := f.room(time.Now(), e.until)
		if n > 0 {
			troubled := e.pause > 0
			f.fetches.Go(func() {
				if troubled && f.leaderIsAlone(ctx) {
					f.ended <- fetched{asked: n, err: errAlone}
				} else {
					f.ended <- f.fetch(n)
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
			f.reconnected(ctx)
		case r := <-f.ended:
			f.close(r)
			e.note(ctx, r)
		}
	}
}

// reconnected looks at the consumer after a reconnect, before the fetcher asks for anything. The server may have been
// restored to an earlier time, which does not show any more when as many messages have been delivered again.
func (f *fetcher) reconnected(ctx context.Context) {
	_, _ = f.s.watcher.refreshConsumer(ctx, 500*time.Millisecond) // without an answer, requests tell
}

// room takes room for the messages of a request: two thirds of what there may be, or whatever there is if nothing is
// outstanding. Without room it says after which time to look again, and when released wakes the fetcher before.
func (f *fetcher) room(now, notBefore time.Time) (n int, wait time.Duration) {
	if wait := notBefore.Sub(now); wait > 0 {
		return 0, wait
	}
	if !f.s.nc.IsConnected() {
		return 0, minPause // a request would lie in a buffer, and reach the server when its answers go nowhere
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// Messages to come are taken to be as large as those that have come, and the first as large as they can be.
	size := cmp.Or(f.size, int(f.s.nc.MaxPayload()), 1)
	maxInFlight, onTheWay := f.s.info.maxInFlight, max(1, bytesOnTheWay/size)
	most := min(maxInFlight, onTheWay)
	n = min(maxInFlight-f.inside, onTheWay) - f.coming
	small := 3*n < 2*most
	f.wakeAt = maxInFlight - (2*most+2)/3
	switch {
	// The server takes requests by turns. Only the messages of one request come in their order.
	case f.outstanding >= f.s.info.fetches || f.s.config.Order != nil && f.outstanding > 0:
		f.wakeAt = -1 // the end of a request says more
		return 0, fetchWait
	case small && f.outstanding > 0:
		return 0, fetchWait
	case n < 1:
		f.wakeAt = maxInFlight - 1
		return 0, fetchWait
	case small && f.smallAt.IsZero():
		f.smallAt = now.Add(smallFetches)
		return 0, smallFetches
	case small && now.Before(f.smallAt):
		return 0, f.smallAt.Sub(now)
	}
	n = min(n, f.s.info.batch)
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

// released notes that a message is not in flight any more. It wakes the fetcher if there is room for a request now.
func (f *fetcher) released() {
	f.mu.Lock()
	f.inside--
	wake := f.inside+f.coming <= f.wakeAt
	if wake {
		f.wakeAt = -1
	}
	f.mu.Unlock()
	if wake {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// A fetched is how a request for messages ended.
type fetched struct {
	asked int
	got   int
	err   error
}

// A request asks the server once for messages (ADR-13 of NATS). Its fields after ended are those of the goroutine that
// receives, until ended is closed.
type request struct {
	sub   *nats.Subscription
	ended chan struct{}

	fetched
	heard     time.Time // when something came last
	over      bool      // what comes now is not taken
	abandoned bool      // something may still come
}

// fetch asks for n messages, and returns when they have come, or no more will.
func (f *fetcher) fetch(n int) fetched {
	sub, err := f.subscription()
	if err != nil {
		return fetched{asked: n, err: err}
	}
	r := &request{sub: sub, ended: make(chan struct{}), fetched: fetched{asked: n}, heard: time.Now()}
	f.mu.Lock()
	f.requests[sub] = r
	f.mu.Unlock()
	err = f.s.nc.PublishRequest(f.s.info.nextSubject, sub.Subject,
		fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, n, f.s.info.expires.Nanoseconds()))
	if err == nil {
		f.await(r)
		err = r.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.requests, sub)
	if r.over && !r.abandoned {
		f.idle = append(f.idle, sub)
	} else {
		_ = sub.Unsubscribe() // it fails where there is no connection any more
	}
	return fetched{asked: n, got: r.got, err: err}
}

// subscription returns one for the answers to a request: requests that are over leave theirs to others.
func (f *fetcher) subscription() (*nats.Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.idle); n > 0 {
		sub := f.idle[n-1]
		f.idle = f.idle[:n-1]
		return sub, nil
	}
	return f.s.nc.ChanSubscribe(f.s.nc.NewInbox(), f.arrived)
}

func (f *fetcher) unsubscribe() {
	for _, sub := range f.idle {
		_ = sub.Unsubscribe() // it fails where there is no connection any more
	}
}

// await returns when a request has ended, or nothing has come for so long and nothing is on its way: then the server
// does not answer. The silence may be that of the network, or of this process: messages that are not taken come again
// after AckWait, behind others of their order keys.
func (f *fetcher) await(r *request) {
	silence := f.s.info.expires + time.Second
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-r.ended:
			return
		case <-timer.C:
		}
		if f.s.nc.IsConnected() { // else nothing of it will come
			_ = f.s.nc.FlushTimeout(flushTimeout) // a connection that is silent for longer than that is given up
		}
		select {
		case f.silent <- r:
		case <-r.ended:
		}
		timer.Reset(silence)
	}
}

// receive hands on what requests bring, as much at a time as is there, until none is outstanding in the drain.
func (f *fetcher) receive(ctx context.Context) {
	var batch []*nats.Msg
	for {
		var silent *request
		select {
		case <-f.s.pulled:
			return
		case m := <-f.arrived:
			batch = append(batch, m)
		case silent = <-f.silent:
		}
		for more := true; more; {
			select {
			case m := <-f.arrived:
				batch = append(batch, m)
			default:
				more = false
			}
		}
		f.handOn(ctx, batch)
		clear(batch)
		batch = batch[:0]
		if silent != nil {
			f.abandon(silent)
		}
	}
}

// handOn has messages handled that have come together, and notes what the server says of requests.
func (f *fetcher) handOn(ctx context.Context, batch []*nats.Msg) {
	now := time.Now()
	came := batch[:0] // the messages
	var ended []*request
	defer func() { // when the loop has what they brought: the drain waits for requests
		for _, r := range ended {
			close(r.ended)
		}
	}()
	f.mu.Lock()
	for _, m := range batch {
		r := f.requests[m.Sub]
		if r == nil || r.over {
			continue // it comes again, after AckWait
		}
		r.heard = now
		if m.Reply == "" { // no message: a message says where its ack goes
			if over, err := ending(m); over {
				r.err, r.over = err, true
				ended = append(ended, r)
			}
			continue
		}
		came = append(came, m)
		f.coming--
		f.inside++
		f.size = max(m.Size(), f.size-f.size/64) // the largest, for some hundred others
		if r.got++; r.got == r.asked {
			r.err, r.over = nil, true
			ended = append(ended, r)
		}
	}
	f.mu.Unlock()
	if len(came) == 0 {
		return
	}
	w := &f.s.watcher
	items := make([]*worker.Item, 0, len(came))
	for _, msg := range came {
		meta, err := msg.Metadata()
		if err != nil {
			f.s.info.log.ErrorContext(ctx, "natsjs: message is not from JetStream, and is ignored",
				"subject", msg.Subject, "error", err)
			f.released()
			continue
		}
		m := f.s.newMessage(ctx, msg, meta, now)
		items = append(items, &m.Item)
		if n := meta.Sequence.Consumer; n > w.delivered.Load() {
			w.delivered.Store(n)
		}
		if !w.probed.Load() {
			w.ackProbe(ctx, m)
		}
	}
	f.s.run.Receive(items)
}

// abandon ends a request, unless something has come lately.
func (f *fetcher) abandon(r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.over || time.Since(r.heard) < f.s.info.expires+time.Second {
		return
	}
	r.abandoned = true
	var err error
	if r.got == 0 {
		err = errUnanswered
	}
	r.end(err)
}

// end has fetch return. The fetcher is locked.
func (r *request) end(err error) {
	r.err, r.over = err, true
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
