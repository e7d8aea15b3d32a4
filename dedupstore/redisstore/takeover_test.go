package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// The second part of claim is there for speed alone: without it the third part writes and says the same, to the byte.
func TestClaim_TakesOverInOneWay(t *testing.T) {
	t.Parallel()
	const clock, now = "local time = {'1799999999', '500000'}", 1799999999500000
	at := func(parts ...string) string {
		return strings.Replace(source(parts...), "local time = redis.call('TIME')", clock, 1)
	}
	quick := at("claim_fresh", "claim_again", "record", "claim")
	slow := strings.Replace(at("claim_fresh", "record", "claim"), "read(raw)", "read(redis.pcall('GET', KEYS[1]))", 1)
	only := at("claim_fresh", "claim_again") // what it decides
	rdb := redistest.Start(t).Client()
	s := newStore(t, rdb)
	decided := 0
	rapid.Check(t, func(rt *rapid.T) {
		for range 40 {
			op := &s.begin(1).made[0]
			r := drawRequest(rt)
			s.claim(op, 0, &r)
			raw := drawRun(rt, op.packed[29:37], now)
			run := func(source string) (reply, record string) {
				if err := rdb.Set(t.Context(), op.name, raw, 0).Err(); err != nil {
					rt.Fatal(err)
				}
				said, err := rdb.Eval(t.Context(), source, []string{op.name}, op.packed, op.ms[0]).Result()
				return fmt.Sprintf("%q, %v", said, err), rdb.Get(t.Context(), op.name).Val()
			}
			gotReply, got := run(quick)
			wantReply, want := run(slow)
			if gotReply != wantReply || got != want {
				rt.Fatalf("record %q\nwas made %q\nnot      %q\nwith the answer %s\nnot             %s",
					raw, got, want, gotReply, wantReply)
			}
			if _, record := run(only); record != raw {
				decided++
			}
		}
	})
	if decided == 0 {
		t.Error("the second part has decided nothing")
	}
	t.Logf("it has decided %d", decided)
}

func drawRequest(rt *rapid.T) dedupstore.Request {
	r := request("k")
	r.Holder = rapid.SampledFrom([]string{"", "a:1", "a host of 28 bytes at most:2"}).Draw(rt, "holder")
	r.Trace = rapid.SampledFrom([]string{r.Trace, "", "of another form"}).Draw(rt, "trace")
	r.Fingerprint.Sum = rapid.SampledFrom([]string{"abc", "abc", "abc", "abd"}).Draw(rt, "sum")
	if rapid.IntRange(0, 3).Draw(rt, "fingerprint") == 0 {
		r.Fingerprint = dedupstore.Fingerprint{}
	}
	r.MaxAttempts = rapid.IntRange(1, 3).Draw(rt, "most")
	r.SuspectAfter, r.ParkExpired = rapid.IntRange(0, 2).Draw(rt, "suspect"), rapid.Bool().Draw(rt, "park")
	return r
}

// drawRun draws a record, nearly always of a run, and sometimes one that cannot be read.
func drawRun(rt *rapid.T, owner []byte, now uint64) string {
	state := rapid.SampledFrom([]string{"R", "R", "R", "S", "T"}).Draw(rt, "state")
	fence := rapid.SampledFrom([]uint64{0, 1, now - 1, now - 100_000, now - 100_000, now, now + 1}).Draw(rt, "fence")
	b := appendDigits([]byte("1"+state+"-"), fence, fenceSize)
	if rapid.IntRange(0, 5).Draw(rt, "same owner") == 0 {
		b = append(b, owner...)
	} else {
		b = append(b, "another1"...)
	}
	sometimes := func(what string, of int) bool { return rapid.IntRange(1, of).Draw(rt, what) == 1 }
	if sometimes("a", 16) {
		b = append(b, "a0000000002"...)
	}
	if sometimes("b", 16) {
		b = appendDigits(append(b, 'b'), 1, fenceSize)
	}
	if !sometimes("no f", 4) {
		sum := rapid.SampledFrom([]string{"abc", "abc", "abc", "abd"}).Draw(rt, "its sum")
		scheme := rapid.SampledFrom([]string{"sha256", "sha256", "sha256", "other"}).Draw(rt, "its scheme")
		b = appendFingerprint(append(b, 'f'), dedupstore.Fingerprint{Scheme: scheme, Sum: sum})
	}
	b = appendTrace(b, rapid.SampledFrom([]string{request("k").Trace, "", "odd"}).Draw(rt, "its trace"))
	if !sometimes("no w", 4) {
		holders := []string{"", "b:2", "b:\x00l\xff", strings.Repeat("w", 255)}
		b = appendText(b, 'w', rapid.SampledFrom(holders).Draw(rt, "its holder"))
	}
	for _, letter := range []byte("SMHZ") { // Z is of a later version
		if sometimes(string(letter), 20) {
			b = appendText(b, letter, rapid.SampledFrom([]string{"", "why", "12345678"}).Draw(rt, "text"))
		}
	}
	switch rapid.IntRange(0, 7).Draw(rt, "lease") {
	case 0:
	case 1, 2:
		b = appendDigits(append(b, 'L'), rapid.SampledFrom([]uint64{0, 1, 99_999, 100_000, 100_001}).Draw(rt, "L"), leaseSize)
	default:
		b = appendDigits(append(b, 'l'), rapid.SampledFrom([]uint64{1, now - 1, now, now + 1}).Draw(rt, "l"), leaseSize)
	}
	if sometimes("cut", 20) {
		from := rapid.IntRange(0, len(b)-1).Draw(rt, "from")
		b = append(b[:from:from], b[min(from+rapid.IntRange(1, 30).Draw(rt, "less"), len(b)):]...)
	}
	if sometimes("torn", 10) && len(b) > 0 {
		at := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
		b[at] = rapid.SampledFrom([]byte("0x9lLw \xff")).Draw(rt, "byte")
	}
	return string(b)
}

// What a process had in hand comes again together: a plain claim of each would be in vain.
func TestClaim_AsksTheScriptAtOnceWhileKeysAreTakenOver(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	hook := &counting{}
	rdb.AddHook(hook)
	requests := func(name string) (all []dedupstore.Request) {
		for i := range 8 {
			all = append(all, request(fmt.Sprint(name, i)))
		}
		return all
	}
	ask := func(all []dedupstore.Request) (plain, scripts int64) {
		t.Helper()
		for i := range all {
			all[i].Owner = ids.Token()
		}
		hook.plain.Store(0)
		hook.scripts.Store(0)
		for _, r := range s.Claim(t.Context(), all) {
			if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun {
				t.Fatalf("%+v", r)
			}
		}
		return hook.plain.Load(), hook.scripts.Load()
	}
	learned(t, s)
	first, second := requests("first"), requests("second")
	ask(first)
	ask(second)
	for _, r := range append(first[:8:8], second...) {
		expire(t, s, rdb, r.Key)
	}
	for i, c := range []struct {
		requests       []dedupstore.Request
		plain, scripts int64
	}{
		{first, 8, 8},
		{second, 0, 8},
		{requests("third"), 0, 8},
		{requests("fourth"), 8, 0},
	} {
		for s.clock.last.Store(nil); s.clock.last.Load() == nil; {
			sent := time.Now()
			s.clock.learn(uint64(must(rdb.Time(t.Context()).Result())(t).UnixMicro()), sent, time.Now())
		}
		if plain, scripts := ask(c.requests); plain != c.plain || scripts != c.scripts {
			t.Errorf("claims %d: %d plain ones and %d scripts, want %d and %d", i, plain, scripts, c.plain, c.scripts)
		}
	}
}

// counting counts claims.
type counting struct{ plain, scripts atomic.Int64 }

func (c *counting) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		switch name := cmd.Name(); {
		case name == "set" && cmd.Args()[3] == "nx":
			c.plain.Add(1)
		case strings.HasPrefix(name, "eval"):
			c.scripts.Add(1)
		}
	}
}

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

// A retry is due from the very microsecond that its record names, and a lease has ended then.
func TestClaim_TimesAreOverWhenTheyHaveCome(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	s := newStore(t, rdb)
	const come = 1799999999500000
	for name, record := range map[string]string{
		"a retry": "1T-1799999990000000abcdefghd1799999999500000",
		"a lease": "1R-1799999990000000abcdefghl1799999999500000",
	} {
		for now, want := range map[int]string{come - 1: "b", come: "r"} {
			clock := fmt.Sprintf("local time = {'%d', '%d'}", now/1_000_000, now%1_000_000)
			op := &s.begin(1).made[0]
			r := request(fmt.Sprint(name, now))
			s.claim(op, 0, &r)
			if err := rdb.Set(t.Context(), op.name, record, 0).Err(); err != nil {
				t.Fatal(err)
			}
			program := strings.Replace(source("claim_fresh", "claim_again", "record", "claim"),
				"local time = redis.call('TIME')", clock, 1)
			said, err := rdb.Eval(t.Context(), program, []string{op.name}, op.packed, op.ms[0]).Text()
			if err != nil || said[:1] != want {
				t.Errorf("%s that ends at %d was answered %q, %v at %d, want %s", name, come, said, err, now, want)
			}
		}
	}
}

// A claim that is granted is stored, also at maxmemory, where Redis refuses the write of the second part.
func TestClaim_TakesOverAtMaxmemory(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s, rdb := newStore(t, server.Client()), server.Client()
	claim(t, s, request("k"), dedupstore.AcquiredRun)
	expire(t, s, rdb, key("k"))
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	a := claim(t, s, request("k"), dedupstore.AcquiredRun)
	if seen := lookAt(t, s, key("k")); seen.Fence != a.Claim.Fence || seen.Attempts != 2 {
		t.Errorf("granted %+v, and the record is %+v", a.Claim, seen)
	}
}
