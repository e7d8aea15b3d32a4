package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// byScript is a hook of a client that does what SET IFEQ does on a server that may not have it.
type byScript struct {
	always bool // forgets the condition
	off    bool
}

func (h *byScript) rewrite(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) < 4 || args[3] != "ifeq" || h.off {
		return
	}
	condition := "redis.call('GET', KEYS[1]) == ARGV[2]"
	if h.always {
		condition = "true"
	}
	source := "return " + condition + " and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])"
	copy(args, []any{"eval", source, 1, args[1], args[2], args[4], args[6]})
}

func (h *byScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *byScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.rewrite(cmd)
		return next(ctx, cmd)
	}
}

func (h *byScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.rewrite(cmd)
		}
		return next(ctx, cmds)
	}
}

// A conditionalServer is one that a store asks for conditional finishes.
type conditionalServer struct {
	*redistest.Server
	hook *byScript // of its clients, if it may not know them
}

func (c conditionalServer) client(t *testing.T, o *redis.Options) *redis.Client {
	rdb := redis.NewClient(o)
	if c.hook != nil {
		rdb.AddHook(c.hook)
	}
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// conditionally runs a test on Valkey, and on a server whose clients put a script in the place of what it may not have.
func conditionally(t *testing.T, test func(t *testing.T, server conditionalServer)) {
	t.Run("by script", func(t *testing.T) {
		t.Parallel()
		test(t, conditionalServer{ownServer(t), new(byScript)})
	})
	t.Run("Valkey", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartValkey(t)
		if !knowsIFEQ(t, server) {
			t.Skip("this Valkey has no SET IFEQ: that of Debian 13 has")
		}
		test(t, conditionalServer{server, nil})
	})
}

func knowsIFEQ(t *testing.T, server *redistest.Server) bool {
	t.Helper()
	err := server.Client().Do(t.Context(), "set", "oncemill-knows", "1", "ifeq", "0").Err()
	return errors.Is(err, redis.Nil)
}

// remembers fails the test unless the store remembers so many records of claims, and tries conditional finishes.
func remembers(t *testing.T, s *Store, n int) {
	t.Helper()
	if c := &s.claimed; len(c.records) != n || !c.resume.IsZero() {
		t.Errorf("%d records of claims are remembered, want %d; paused until %v", len(c.records), n, c.resume)
	}
}

// The script of the store that has them is broken: nothing asks it.
func TestConditional_WritesWhatTheScriptWrites(t *testing.T) {
	t.Parallel()
	conditionally(t, func(t *testing.T, server conditionalServer) {
		rdb := server.client(t, server.Options())
		s := newStore(t, rdb)
		broken := newStore(t, rdb)
		broken.scripts.finish = scriptOf("finish", "return redis.error_reply('ERR asked')")
		for _, plain := range []bool{false, true} {
			for name, finish := range map[string]dedupstore.Finish{
				"succeeded": succeeded("result"),
				"failed": {
					Retention: time.Minute, Took: time.Second,
					Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "no", Truncated: true},
				},
				"published": {
					Retention: time.Hour, Published: true,
					Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "1", Topic: "t"}}},
				},
			} {
				r := request(fmt.Sprint(name, plain))
				r.Holder = "host:1"
				var raw [2]string
				for i, store := range []*Store{s, broken} {
					if plain {
						plainly(t, store)
					}
					r.Owner = ids.Token()
					c := claim(t, store, r, dedupstore.AcquiredRun).Claim
					if i == 0 {
						s.claimed.take(c.Fence)
					}
					settle(t, store, c, finish)
					raw[i] = must(rdb.Get(t.Context(), store.name(r.Key)).Result())(t)
					raw[i] = raw[i][:3] + raw[i][headSize:] // without fence and owner
					if ttl := rdb.PTTL(t.Context(), store.name(r.Key)).Val(); ttl > finish.Retention || ttl < finish.Retention-10*time.Second {
						t.Errorf("%s is kept for %v", r.Key.ID, ttl)
					}
				}
				if raw[0] != raw[1] {
					t.Errorf("%s: the script wrote %q, SET IFEQ %q", r.Key.ID, raw[0], raw[1])
				}
			}
		}
	})
}

// A lost reply looks like a refusal when the command is repeated. The script then tells that the outcome is stored.
func TestConditional_LostReply(t *testing.T) {
	t.Parallel()
	conditionally(t, func(t *testing.T, server conditionalServer) {
		for _, retries := range []int{-1, 1} { // of the client; -1: none
			proxy := redistest.StartProxy(t, server.Addr)
			o := server.Options()
			o.Addr, o.MaxRetries = proxy.Addr, retries
			s := newStore(t, server.client(t, o))
			c := claim(t, s, request("k"), dedupstore.AcquiredRun).Claim
			proxy.Inject(func(e redistest.Exchange) redistest.Fault {
				return redistest.Fault{DropReply: proxy.Dropped() == 0 && e.Has("1Ds")}
			})
			err := dedupstore.SettleOne(t.Context(), s, c, succeeded("kept"))
			if proxy.Dropped() != 1 {
				t.Fatalf("%d replies were lost", proxy.Dropped())
			}
			if retries < 0 {
				if err == nil || errors.Is(err, dedupstore.ErrClaimLost) {
					t.Errorf("without a reply the settlement was answered %v", err)
				}
				err = dedupstore.SettleOne(t.Context(), s, c, succeeded("kept")) // the caller asks again
			}
			if err != nil {
				t.Errorf("the settlement was answered %v", err)
			}
			if a := claim(t, s, request("k"), dedupstore.Done); string(a.Outcome.Result) != "kept" {
				t.Errorf("the result is %q", a.Outcome.Result)
			}
			remembers(t, s, 0)
		}
	})
}

// If the condition refuses, the script decides.
func TestConditional_RecordThatHasChanged(t *testing.T) {
	t.Parallel()
	conditionally(t, func(t *testing.T, server conditionalServer) {
		rdb := server.client(t, server.Options())
		s := newStore(t, rdb)
		other := must(New(rdb, Config{Prefix: s.config.Prefix}))(t) // has a claim extended without a word to s
		for name, test := range map[string]struct {
			change func(t *testing.T, c dedupstore.Claim)
			want   error
		}{
			"extended": {func(t *testing.T, c dedupstore.Claim) {
				x := dedupstore.Extension{Claim: c, Lease: time.Hour, Started: true}
				if err := dedupstore.ExtendOne(t.Context(), other, x); err != nil {
					t.Fatal(err)
				}
			}, nil},
			"taken over": {func(t *testing.T, c dedupstore.Claim) {
				expire(t, s, rdb, c.Key)
				claim(t, other, request(c.Key.ID), dedupstore.AcquiredRun)
			}, dedupstore.ErrClaimLost},
			"finished by its owner": {func(t *testing.T, c dedupstore.Claim) { settle(t, other, c, succeeded("")) }, nil},
			"gone": {func(t *testing.T, c dedupstore.Claim) {
				must(rdb.Del(t.Context(), s.name(c.Key)).Result())(t)
			}, dedupstore.ErrClaimLost},
		} {
			c := claim(t, s, request(name), dedupstore.AcquiredRun).Claim
			test.change(t, c)
			if err := dedupstore.SettleOne(t.Context(), s, c, succeeded("")); !errors.Is(err, test.want) {
				t.Errorf("%s: the settlement was answered %v, want %v", name, err, test.want)
			}
		}
		remembers(t, s, 0)
		c := claim(t, s, request("extended here"), dedupstore.AcquiredRun).Claim
		remembers(t, s, 1)
		if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: c, Lease: time.Hour}); err != nil {
			t.Fatal(err)
		}
		remembers(t, s, 0)
		settle(t, s, c, succeeded(""))
	})
}

// A full server refuses SET, but lets scripts settle what it knows.
func TestConditional_FullServer(t *testing.T) {
	t.Parallel()
	conditionally(t, func(t *testing.T, server conditionalServer) {
		rdb := server.client(t, server.Options())
		s := newStore(t, rdb)
		c := claim(t, s, request("k"), dedupstore.AcquiredRun).Claim
		if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
		settle(t, s, c, succeeded(""))
		claim(t, s, request("k"), dedupstore.Done)
	})
}

// A failover may lead to a server that does not know the command, at any time.
func TestConditional_ServerThatDoesNotKnowIt(t *testing.T) {
	t.Parallel()
	old := ownServer(t)
	rdb := old.Client()
	if knowsIFEQ(t, old) {
		t.Skip("redis-server in PATH has SET IFEQ")
	}
	conditionally(t, func(t *testing.T, server conditionalServer) {
		var addr atomic.Value
		addr.Store(server.Addr)
		o := server.Options()
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}
		client := server.client(t, o)
		s := newStore(t, client)
		settle(t, s, claim(t, s, request("before"), dedupstore.AcquiredRun).Claim, succeeded(""))
		batch := make([]dedupstore.Settling, 3)
		for i := range batch {
			c := claim(t, s, request(fmt.Sprint(i)), dedupstore.AcquiredRun).Claim
			record := must(client.Get(t.Context(), s.name(c.Key)).Result())(t)
			if err := rdb.Set(t.Context(), s.name(c.Key), record, time.Hour).Err(); err != nil { // a replica has it
				t.Fatal(err)
			}
			batch[i] = dedupstore.Settling{Claim: c, Settlement: succeeded("")}
		}
		remembers(t, s, len(batch))
		addr.Store(old.Addr)
		if server.hook != nil {
			server.hook.off = true
		}
		must(server.Client().Do(t.Context(), "client", "kill", "type", "normal").Result())(t)
		for i, err := range s.Settle(t.Context(), batch) {
			if err != nil {
				t.Errorf("settlement %d was answered %v", i, err)
			}
		}
		for i := range batch {
			claim(t, s, request(fmt.Sprint(i)), dedupstore.Done)
		}
		settle(t, s, claim(t, s, request("after"), dedupstore.AcquiredRun).Claim, succeeded(""))
		if c := &s.claimed; len(c.records) > 0 || c.resume.IsZero() {
			t.Error("conditional finishes are tried all the same")
		}
	})
}

func TestConditional_MemoryIsBounded(t *testing.T) {
	t.Parallel()
	var c claimed
	op := &operation{reply: "1700000000000000", packed: make([]byte, 100)}
	for fence := range uint64(maxClaimed + 1) {
		c.keep(fence, op)
	}
	if len(c.records) != 1 {
		t.Errorf("%d records are remembered", len(c.records))
	}
	if _, known := c.take(maxClaimed); !known {
		t.Error("the last is forgotten")
	}
	c.pause()
	c.keep(1, op)
	if c.resume = time.Now(); len(c.records) != 0 {
		t.Error("records are remembered although none is of use")
	}
	if c.keep(1, op); len(c.records) != 1 {
		t.Error("nothing is remembered after the pause")
	}
}
