package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestCheck_RefusesEvictionUnlessItIsAllowed(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "volatile-lfu"} {
		rdb := redistest.Start(t, "--maxmemory-policy", policy).Client()
		s := newStore(t, rdb)
		_, err := s.Check(t.Context())
		var refused *dedupstore.SetupError
		if !errors.As(err, &refused) || !strings.Contains(refused.Problem, fmt.Sprintf("maxmemory-policy %q", policy)) {
			t.Errorf("%s: error is %v", policy, err)
			continue
		}
		for _, want := range []string{policy, "maxmemory-policy noeviction", "Config.AllowEviction"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error %q does not say %q", err, want)
			}
		}
		if _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); !errors.As(err, &refused) {
			t.Errorf("%s: the first claim's error is %v, want a SetupError", policy, err)
		}
		allowed := must(New(rdb, Config{AllowEviction: true}))(t)
		report := must(allowed.Check(t.Context()))(t)
		if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, policy) }) {
			t.Errorf("no warning names %s: %q", policy, report.Warnings)
		}
		claim(t, allowed, request("1"), dedupstore.AcquiredRun)

		if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
			t.Fatal(err)
		}
		claim(t, s, request("2"), dedupstore.AcquiredRun) // the next claim looks again
	}
}

func TestCheck_ReportsWhatSurvivesACrash(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"none: every record": {"--appendonly", "no"},
		"snapshots only":     {"--save", "60 1"},
		"once a second":      {"--appendonly", "yes"},
		"before every reply": {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		o := redistest.Start(t, args...).Options()
		o.ContextTimeoutEnabled = true
		rdb := redis.NewClient(o)
		t.Cleanup(func() { rdb.Close() })
		report := must(newStore(t, rdb).Check(t.Context()))(t)
		if report.Store != "redis" || !atLeast(strings.TrimPrefix(report.Version, "valkey "), 6, 2) || !strings.Contains(report.Durability, want) {
			t.Errorf("%q: the report is %+v", args, report)
		}
		if safe := len(report.Warnings) == 0; safe != strings.Contains(want, "before every reply") {
			t.Errorf("%q: the warnings are %q", args, report.Warnings)
		}
	}
}

func TestCheck_AServerThatLoadsItsFileStillHasOne(t *testing.T) {
	t.Parallel()
	// While it reads the file, for some 5 s, it answers requests after every 1024 commands.
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no", "--key-load-delay", "200")
	rdb := server.Client()
	pipe := rdb.Pipeline()
	for i := range 20_000 {
		pipe.Set(t.Context(), fmt.Sprint("filling:", i), i, 0)
	}
	must(pipe.Exec(t.Context()))(t)
	server.Kill()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		server.Restart()
	}()
	defer func() { <-loaded }()
	eventually(t, func() error {
		text, err := rdb.Info(t.Context(), "persistence").Result()
		if err == nil && !strings.Contains(text, "loading:1") {
			err = errors.New("it is not loading")
		}
		return err
	})
	report := must(newStore(t, rdb).Check(t.Context()))(t)
	if text := rdb.Info(t.Context(), "persistence").Val(); !strings.Contains(text, "loading:1") {
		t.Fatal("the file was loaded before the server was looked at")
	}
	// It tells its settings, and runs no script.
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "unknown: LOADING") || !strings.Contains(report.Durability, "before every reply") {
		t.Errorf("the report is %+v", report)
	}
}

func TestCheck_WarnsOfSettingsThatForgetClaims(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes",
		"--repl-diskless-sync-delay", "3")
	host, port, _ := strings.Cut(master.Addr, ":")
	redistest.Start(t, "--replicaof", host+" "+port)
	s := must(New(master.Client(), Config{Replicas: 2}))(t)
	var report dedupstore.Report
	eventually(t, func() error {
		report = must(s.Check(t.Context()))(t)
		if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.HasPrefix(w, "connected replicas are 1:") }) {
			return fmt.Errorf("the warnings are %q", report.Warnings)
		}
		return nil
	})
	for _, setting := range []string{"no-appendfsync-on-rewrite is yes:", "min-replicas-to-write is 0:", "repl-diskless-sync-delay is 3:"} {
		if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.HasPrefix(w, setting) }) {
			t.Errorf("no warning begins with %q: %q", setting, report.Warnings)
		}
	}
}

func TestCheck_WarnsOfClientsThatMayWaitWithoutEnd(t *testing.T) {
	t.Parallel()
	const off = "ReadTimeout or WriteTimeout of the go-redis client is off"
	for _, c := range []struct {
		contexts        bool
		read, write     time.Duration
		single, cluster bool // whether a client of a single server, and of a Cluster, is warned of
	}{
		{contexts: true},
		{contexts: false},
		{contexts: true, read: -1, cluster: true},
		{contexts: false, read: -1, single: true, cluster: true},
		{contexts: true, read: -2, single: true, cluster: true},
		{contexts: true, write: -2, single: true, cluster: true},
	} {
		single := redis.NewClient(&redis.Options{ContextTimeoutEnabled: c.contexts, ReadTimeout: c.read, WriteTimeout: c.write})
		defer single.Close()
		cluster := redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: c.contexts, ReadTimeout: c.read, WriteTimeout: c.write})
		defer cluster.Close()
		for rdb, want := range map[redis.UniversalClient]bool{single: c.single, cluster: c.cluster} {
			w := clientWarnings(rdb)
			if got := slices.ContainsFunc(w, func(w string) bool { return strings.HasPrefix(w, off) }); got != want {
				t.Errorf("%+v with a %T: the warnings are %q", c, rdb, w)
			}
		}
	}
}

func TestStore_WhatTheFirstClaimIsWarnedOfIsLoggedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	for name, want := range map[string]int{"claimed": 1, "checked": 0} {
		var log bytes.Buffer
		s := must(New(server.Client(), Config{Prefix: name, Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
		if name == "checked" {
			must(s.Check(t.Context()))(t)
		}
		for range 2 {
			must(dedupstore.ClaimOne(t.Context(), s, request(name)))(t)
		}
		if n := strings.Count(log.String(), "appendonly is no"); n != want {
			t.Errorf("%s: the log has the warning %d times, want %d: %q", name, n, want, log.String())
		}
	}
}

// refusing is a hook that answers INFO with an error of the server as long as it has one.
type refusing struct{ left atomic.Int32 }

func (h *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Name() == "info" && h.left.Add(-1) >= 0 {
				cmd.SetErr(loadingError{})
			}
		}
		return err
	}
}

type loadingError struct{}

func (loadingError) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (loadingError) RedisError()   {}

func TestCheck_ServerThatIsLoadingIsNoReasonToSkipTheCheck(t *testing.T) {
	t.Parallel()
	rdb := ownServer(t).Client()
	h := &refusing{}
	h.left.Store(1)
	rdb.AddHook(h)
	s := newStore(t, rdb)
	_, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
	var unfit *dedupstore.SetupError
	if !errors.Is(err, loadingError{}) || errors.As(err, &unfit) {
		t.Errorf("error is %v, want LOADING and no SetupError", err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun) // looks again
}

// Shadow mode gives a claim 25 ms, with the look before it: of several round trips it would never end in time at 3 ms each.
func TestCheck_AsksAServerOnce(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	var sizes []int
	rdb.AddHook(recording{new(sync.Mutex), &sizes})
	must(s.Check(t.Context()))(t)
	if !slices.Contains(sizes, 1+len(settings)) { // beside those of a new connection
		t.Errorf("pipelines of %v commands, want one of all", sizes)
	}
}

func TestCheck_ServerWithoutInfoGetsAnErrorThatNamesTheWayOut(t *testing.T) {
	t.Parallel()
	_, err := newStore(t, redistest.Start(t, "--rename-command", "INFO", "").Client()).Check(t.Context())
	var unfit *dedupstore.SetupError
	if !errors.As(err, &unfit) || !strings.Contains(unfit.Problem, "INFO") || !strings.Contains(err.Error(), "Config.SkipCheck") {
		t.Errorf("error is %v, want a SetupError for INFO", err)
	}
}

func TestCheck_ServerWithoutConfigIsTakenWithUnknownDurability(t *testing.T) {
	t.Parallel()
	report := must(newStore(t, redistest.Start(t, "--rename-command", "CONFIG", "").Client()).Check(t.Context()))(t)
	if !strings.Contains(report.Durability, "unknown") {
		t.Errorf("the durability is %q", report.Durability)
	}
}

func TestCheck_RefusesReplicas(t *testing.T) {
	t.Parallel()
	master := ownServer(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	_, err := newStore(t, replica.Client()).Check(t.Context())
	var refused *dedupstore.SetupError
	if !errors.As(err, &refused) || !strings.Contains(refused.Problem, "is a replica") {
		t.Errorf("error is %v, want a SetupError for the role", err)
	}
}

func TestCheck_RefusesOldVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"6.2.0": true, "6.2.14": true, "7.0.15": true, "10.0.1": true, "255.255.255": true,
		"6.0.16": false, "5.0.14": false, "": false, "six": false, "6": false, "a.b.c": false,
	} {
		v := server{info: map[string]string{"redis_version": version, "maxmemory_policy": noEviction}}
		if err := v.fit(false); (err == nil) != want {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

// The first claim looks at the server. A reply to that which never comes must not hold up all others for as long as the process lives.
func TestStore_CheckThatDoesNotEndHoldsUpNoLaterClaim(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	for name, options := range map[string]redis.Options{
		"by default":         {},
		"without a deadline": {ContextTimeoutEnabled: true, ReadTimeout: -2},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := redistest.StartProxy(t, server.Addr)
			options.Addr = proxy.Addr
			rdb := redis.NewClient(&options)
			t.Cleanup(func() { rdb.Close() })
			s := newStore(t, rdb)
			let := make(chan struct{})
			defer close(let)
			looks := make(chan struct{})
			var looked atomic.Bool
			proxy.Inject(func(e redistest.Exchange) redistest.Fault {
				if e.Has("\r\ninfo\r\n") && looked.CompareAndSwap(false, true) {
					close(looks)
					<-let
				}
				return redistest.Fault{}
			})
			ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
			defer cancel()
			first, giveUp := context.WithCancel(ctx)
			go func() { <-looks; giveUp() }()
			if _, err := dedupstore.ClaimOne(first, s, request("1")); !errors.Is(err, context.Canceled) {
				t.Fatalf("the first claim: %v, want the end of its context", err)
			}
			if a, err := dedupstore.ClaimOne(ctx, s, request("1")); err != nil || a.Status != dedupstore.AcquiredRun {
				t.Errorf("the next claim: %+v, %v", a, err)
			}
		})
	}
}

// The first claim looks at the server before.
func TestStore_CheckOfTheFirstClaimEndsWithItsContextWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, ownServer(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: time.Hour})
	t.Cleanup(func() { rdb.Close() })
	s, hung := newStore(t, rdb), make(chan struct{})
	proxy.Inject(func(redistest.Exchange) redistest.Fault {
		<-hung
		return redistest.Fault{}
	})
	release := sync.OnceFunc(func() { close(hung) })
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := dedupstore.ClaimOne(ctx, s, request("1"))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > testserver.WaitLimit {
		t.Errorf("%v after %v, want the end of its context after 200 ms", err, time.Since(start))
	}
	release()
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	s.Close()
}
