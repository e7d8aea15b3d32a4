package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// A path is one way to claim, or to claim and settle. It has some steps, and each goes out for 128 messages in one
// pipeline before the next begins. It shows what a way costs the server, the client left out.
type path struct {
	name  string
	steps []step
}

// A step is a command for each message.
type step struct {
	script string // loaded first, if there is one
	args   func(sha string, m message) []any
	ok     func(reply any, err error) bool
}

const (
	depth     = 128
	pipelines = 16 // at a time: enough to keep the server busy
)

const (
	smallClaim = "p:0123456789abcdef:1700000000000"
	smallDone  = "d:ok"
	ownedDone  = "if redis.call('GET',KEYS[1])==ARGV[1] then redis.call('SET',KEYS[1],ARGV[2],'PX',ARGV[3]) return 1 end return 0"
)

//go:embed hash_claim.lua
var hashClaim string

var (
	keep       = (lease + window).Milliseconds()
	fullRecord = "1R-1700000000000000" + "abcdefgh" + plainRest
)

func setNX(value string) step {
	return step{
		args: func(_ string, m message) []any { return []any{"set", m.name(), value, "nx", "get", "px", keep} },
		ok:   func(_ any, err error) bool { return errors.Is(err, redis.Nil) },
	}
}

var expiry = step{
	args: func(_ string, m message) []any { return []any{"pexpiretime", m.name()} },
	ok:   func(reply any, _ error) bool { at, ok := reply.(int64); return ok && at > 0 },
}

func script(source string, ok func(any, error) bool, args func(m message) []any) step {
	return step{script: source, ok: ok, args: func(sha string, m message) []any {
		return append([]any{"evalsha", sha, 1, m.name()}, args(m)...)
	}}
}

func fenced(reply any, _ error) bool { fence, ok := reply.(string); return ok && len(fence) == 16 }

func settled(reply any, _ error) bool { return reply == int64(1) }

// floorPath is the least that a claim with an owner and a settle that compares it cost.
var floorPath = path{"floor", []step{
	setNX(smallClaim),
	script(ownedDone, settled, func(message) []any { return []any{smallClaim, smallDone, keep} }),
}}

// paths compares what ways to claim cost the server.
func paths(ctx context.Context, b *kit.Bench, server *kit.Redis) error {
	var variants []kit.Variant
	for _, p := range []path{
		{"SET NX GET", []step{setNX(fullRecord)}},
		{"SET NX GET, PEXPIRETIME", []step{setNX(fullRecord), expiry}},
		{"script: TIME, SET NX", []step{script(plainClaim, fenced, func(m message) []any {
			return []any{m.owner[:8] + plainRest, keep}
		})}},
		{"script: TIME, HMGET, HSET, PEXPIRE", []step{script(hashClaim, fenced, func(m message) []any {
			return []any{m.owner, lease.Milliseconds(), keep, "sha256:" + digest, trace}
		})}},
	} {
		variants = append(variants, kit.Variant{Name: p.name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
			return pipelined(ctx, server, inCell(b.Cell), p)
		}})
	}
	_, err := b.Compare(ctx, fmt.Sprintf("Ways to claim, in pipelines of %d", depth), b.Rounds, variants...)
	return err
}

// pipelined measures a path, after a short warm-up.
func pipelined(ctx context.Context, server *kit.Redis, messages int64, p path) (f []kit.Figure, err error) {
	if err := server.Flush(ctx); err != nil {
		return nil, err
	}
	rdb := redis.NewClient(options(server.Addr))
	defer func() { err = errors.Join(err, rdb.Close()) }()
	shas := make([]string, len(p.steps))
	for i, s := range p.steps {
		if s.script == "" {
			continue
		}
		if shas[i], err = rdb.ScriptLoad(ctx, s.script).Result(); err != nil {
			return nil, err
		}
	}
	if _, err := p.drive(ctx, rdb, shas, messages/5); err != nil {
		return nil, err
	}
	var y yield
	cost, err := costOf(ctx, server, func() (int64, error) {
		y, err = p.drive(ctx, rdb, shas, messages)
		return y.messages, err
	})
	if err != nil {
		return nil, err
	}
	return append([]kit.Figure{y.rate()}, cost...), nil
}

// drive sends so many messages in batches, from several goroutines, and checks every reply.
func (p path) drive(ctx context.Context, rdb *redis.Client, shas []string, messages int64) (yield, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cell := int(cells.Add(1))
	begun := time.Now()
	var taken atomic.Int64
	var workers sync.WaitGroup
	for range pipelines {
		workers.Go(func() {
			for ctx.Err() == nil {
				n := taken.Add(depth) - depth
				if n >= messages {
					return
				}
				if err := p.batch(ctx, rdb, shas, cell, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	batches := (messages + depth - 1) / depth
	return yield{messages: batches * depth, elapsed: time.Since(begun)}, context.Cause(ctx)
}

func (p path) batch(ctx context.Context, rdb *redis.Client, shas []string, cell int, first int64) error {
	for i, s := range p.steps {
		pipe := rdb.Pipeline()
		for n := range int64(depth) {
			pipe.Do(ctx, s.args(shas[i], numbered(cell, first+n))...)
		}
		replies, err := pipe.Exec(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, reply := range replies {
			cmd := reply.(*redis.Cmd)
			if !s.ok(cmd.Val(), cmd.Err()) {
				return fmt.Errorf("%s: %s was answered with %v, %w", p.name, strings.Fields(cmd.String())[0], cmd.Val(), errors.Join(cmd.Err(), err))
			}
		}
	}
	return nil
}
