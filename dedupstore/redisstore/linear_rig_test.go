package redisstore

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A rig is a server behind a proxy that loses replies, and a client for each worker.
type rig struct {
	proxy   *redistest.Proxy
	clients []*redis.Client
	sent    []*sentLog   // what each client has begun to send
	scripts atomic.Int64 // scripts that the proxy has seen
}

func newRig(t *testing.T, server *redistest.Server) *rig {
	t.Helper()
	r := &rig{proxy: redistest.StartProxy(t, server.Addr)}
	for range lineartest.Workers {
		sent := new(sentLog)
		o := server.Options()
		o.Addr = r.proxy.Addr
		o.ReadTimeout, o.MinRetryBackoff, o.MaxRetryBackoff = linearTimeout, time.Millisecond, 2*time.Millisecond
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return countingConn{conn, sent}, err
		}
		rdb := redis.NewClient(o)
		t.Cleanup(func() { rdb.Close() })
		r.clients, r.sent = append(r.clients, rdb), append(r.sent, sent)
	}
	return r
}

// A coalescing store sends the operations of its callers together.
type coalescing struct {
	claims     *batch.Queue[dedupstore.Request, dedupstore.ClaimResult]
	extensions *batch.Queue[dedupstore.Extension, error]
	settlings  *batch.Queue[dedupstore.Settling, error]
}

func together(s *Store) coalescing {
	failed := func(err error) error { return err }
	return coalescing{
		&batch.Queue[dedupstore.Request, dedupstore.ClaimResult]{Send: s.Claim, Timeout: time.Minute,
			Failed: func(err error) dedupstore.ClaimResult { return dedupstore.ClaimResult{Err: err} }},
		&batch.Queue[dedupstore.Extension, error]{Send: s.Extend, Timeout: time.Minute, Failed: failed},
		&batch.Queue[dedupstore.Settling, error]{Send: s.Settle, Timeout: time.Minute, Failed: failed},
	}
}

func (c coalescing) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return []dedupstore.ClaimResult{*c.claims.Do(ctx, requests[0])}
}

func (c coalescing) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return []error{*c.extensions.Do(ctx, extensions[0])}
}

func (c coalescing) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return []error{*c.settlings.Do(ctx, settlings[0])}
}

// linearTimeout is after what time a client sends again.
const linearTimeout = 60 * time.Millisecond

// faulty is how many exchanges had a fault after which a client sends again.
func (r *rig) faulty() int { return r.proxy.Dropped() + r.proxy.Frozen() }

// A sentLog is what a client has begun to send, repetitions of its own included.
type sentLog struct {
	mu     sync.Mutex
	writes [][]byte
}

func (l *sentLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.writes)
}

// of is how many commands of an owner were sent after the first so many writes.
func (l *sentLog) of(owner string, after int) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := appendTag(nil, owner)
	for _, b := range l.writes[after:] {
		for command := range bytes.SplitSeq(b, []byte("\r\n*")) {
			if bytes.Contains(command, mark) {
				n++
			}
		}
	}
	return n
}

// together is how many commands on records travelled with others, of how many.
func (l *sentLog) together() (some, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.writes {
		n := bytes.Count(b, []byte("\r\nevalsha\r\n")) + bytes.Count(b, []byte("\r\nset\r\n"))
		if all += n; n > 1 {
			some += n
		}
	}
	return some, all
}

// A countingConn logs the commands on records.
type countingConn struct {
	net.Conn
	sent *sentLog
}

func (c countingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\neval")) || bytes.Contains(b, []byte("\r\nset\r\n")) {
		c.sent.mu.Lock()
		c.sent.writes = append(c.sent.writes, bytes.Clone(b))
		c.sent.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// faults drops every so-manieth reply, delays some, and holds some requests so long that their clients have gone.
func (r *rig) faults(seed uint64) func(redistest.Exchange) redistest.Fault {
	rnd := lineartest.Rand(seed)
	return func(e redistest.Exchange) (f redistest.Fault) {
		if !e.Has("\r\neval") && !e.Has("\r\nset\r\n") {
			return f
		}
		f.DropReply = r.scripts.Add(1)%linearDropEvery == 0
		switch n := rnd.IntN(100); {
		case n < 1:
			f.HoldRequest = 50*time.Millisecond + time.Duration(rnd.Int64N(int64(50*time.Millisecond)))
		case n < 11:
			f.DelayReply = time.Duration(rnd.Int64N(int64(3 * time.Millisecond)))
		}
		return f
	}
}
