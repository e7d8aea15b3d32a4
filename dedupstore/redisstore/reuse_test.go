package redisstore

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// A breakerHook gives up its first command while that is still under way, as circuit breakers do, and has the answer
// come when the second command has been answered.
type breakerHook struct {
	on       atomic.Bool
	late     atomic.Bool // the first command is to be written
	commands atomic.Int32
	written  chan struct{} // the first command is
	answer   chan struct{} // closed when it may be read
	over     chan struct{}
}

func (h *breakerHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		return &lateConn{Conn: c, hook: h}, err
	}
}

func (h *breakerHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *breakerHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		if !h.on.Load() {
			return next(ctx, c)
		}
		switch h.commands.Add(1) {
		case 1:
			h.late.Store(true)
			go func() {
				defer close(h.over)
				_ = next(ctx, c)
			}()
			<-h.written
			return context.DeadlineExceeded
		case 2:
			err := next(ctx, c)
			close(h.answer)
			<-h.over
			return err
		}
		return next(ctx, c)
	}
}

// A lateConn holds back the answer to the first command.
type lateConn struct {
	net.Conn
	hook *breakerHook
	late atomic.Bool
}

func (c *lateConn) Write(b []byte) (int, error) {
	if !c.hook.late.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	c.late.Store(true)
	defer close(c.hook.written)
	return c.Conn.Write(b)
}

func (c *lateConn) Read(b []byte) (int, error) {
	if c.late.CompareAndSwap(true, false) {
		<-c.hook.answer
	}
	return c.Conn.Read(b)
}

// An answer that comes when nobody waits for it any more is not the answer to what is asked next.
func TestOperation_ALateAnswerIsNobodyElses(t *testing.T) {
	rdb := redis.NewClient(ownServer(t).Client().Options())
	defer rdb.Close()
	hook := &breakerHook{}
	rdb.AddHook(hook)
	s := newStore(t, rdb)
	finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
	for range 20 { // the pool may drop an operation
		mine := claim(t, s, request(ids.Token()), dedupstore.AcquiredRun).Claim
		zombie := mine
		zombie.Owner = ids.Token()
		if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: mine, Lease: time.Minute, Started: true}); err != nil { // the server knows the scripts
			t.Fatal(err)
		}
		if err := dedupstore.SettleOne(t.Context(), s, zombie, finish); !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Fatal(err)
		}
		hook.written, hook.answer, hook.over = make(chan struct{}), make(chan struct{}), make(chan struct{})
		hook.commands.Store(0)
		hook.on.Store(true)
		if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: mine, Lease: time.Minute, Started: true}); err == nil {
			t.Fatal("the hook did not give up")
		}
		if err := dedupstore.SettleOne(t.Context(), s, zombie, finish); !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Fatalf("settlement of another owner: %v, want %v", err, dedupstore.ErrClaimLost)
		}
		hook.on.Store(false)
	}
}
