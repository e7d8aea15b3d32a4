package redistest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/internal/testserver"
)

func TestRedis_KeepsItsFilesAndPortOverKillAndRestart(t *testing.T) {
	t.Parallel()
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := s.Client()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr, first := s.Addr, s.Process()
	s.Kill()
	select {
	case <-first.Ended():
	default:
		t.Error("the process has not ended")
	}
	if err := ping(addr); err == nil {
		t.Error("the killed server answers")
	}
	s.Restart()
	if got, err := s.Client().Get(t.Context(), "k").Result(); got != "v" || err != nil || s.Addr != addr {
		t.Errorf("after the restart: %q, %v, at %s", got, err, s.Addr)
	}
}

func TestRedis_IsRecordedAsUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	t.Setenv(testserver.UsedFile, file)
	s := Start(t, "--save", "")
	lines := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := lines(); !strings.HasPrefix(got, "redis-server ") || !strings.HasSuffix(got, " (started, single)\n") {
		t.Errorf("recorded %q", got)
	}
	t.Setenv(redisURL, "redis://"+s.Addr+"/0")
	given := Start(t)
	if given.Addr != s.Addr || given.Ours() {
		t.Errorf("the given server was not used: %s", given.Addr)
	}
	if got := lines(); !strings.Contains(got, "(given by ONCEMILL_TEST_REDIS)\n") {
		t.Errorf("recorded %q", got)
	}
}

// single is a client that never repeats.
func single(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 5 * time.Second, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestProxy_DropsTheReplyAfterTheServerDidTheWork(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := StartProxy(t, s.Addr)
	rdb := single(t, p.Addr)
	key := "dropped-" + p.Addr
	p.Inject(func(e Exchange) Fault { return Fault{DropReply: e.Has("INCR")} })
	if err := rdb.Incr(t.Context(), key).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("error is %v, want EOF", err)
	}
	p.Inject(nil)
	if n, err := rdb.Incr(t.Context(), key).Result(); n != 2 || err != nil {
		t.Errorf("the second INCR gave %d, %v", n, err)
	}
	if p.Dropped() != 1 {
		t.Errorf("%d dropped, want 1", p.Dropped())
	}
}

func TestProxy_HeldRequestArrivesAfterItsClientHasGone(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := StartProxy(t, s.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1, ReadTimeout: time.Second})
	t.Cleanup(func() { rdb.Close() })
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	key := "held-" + p.Addr
	p.Inject(func(e Exchange) Fault {
		if e.Has("\r\nset\r\n") {
			return Fault{HoldRequest: 3 * time.Second}
		}
		return Fault{}
	})
	if err := rdb.Set(t.Context(), key, "late", 0).Err(); err == nil {
		t.Error("the client did not give up")
	}
	direct := s.Client()
	err := testserver.Until(t.Context(), func() error { return direct.Get(t.Context(), key).Err() })
	if err != nil || p.Frozen() != 1 {
		t.Errorf("%v, %d held", err, p.Frozen())
	}
}

func TestProxy_CutAndHeal(t *testing.T) {
	t.Parallel()
	p := StartProxy(t, Start(t).Addr)
	rdb := single(t, p.Addr)
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	for range 3 {
		if err := rdb.Ping(t.Context()).Err(); err == nil {
			t.Error("a cut proxy answers")
		}
	}
	p.Heal()
	if err := testserver.Until(t.Context(), func() error { return rdb.Ping(t.Context()).Err() }); err != nil {
		t.Error(err)
	}
}

func TestProxy_PassesLargeValuesAndPipelines(t *testing.T) {
	t.Parallel()
	p := StartProxy(t, Start(t).Addr)
	rdb := single(t, p.Addr)
	key, large := "large-"+p.Addr, strings.Repeat("\r\n*$", 100_000)
	pipe := rdb.Pipeline()
	pipe.Set(t.Context(), key, large, time.Minute)
	got := pipe.Get(t.Context(), key)
	all := pipe.HGetAll(t.Context(), "none-"+p.Addr)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.Val() != large || len(all.Val()) != 0 {
		t.Errorf("the value came back with %d bytes, want %d", len(got.Val()), len(large))
	}
}

func TestRedisCluster_IsComplete(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	if len(c.Nodes) != 6 {
		t.Fatalf("%d nodes, want 6", len(c.Nodes))
	}
	rdb := c.Client()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := rdb.Set(t.Context(), key, key, 0).Err(); err != nil {
			t.Error(err)
		}
	}
}

func TestStart_SkipsWhereNoServerIsWanted(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_SERVERS", "none")
	t.Setenv(redisURL, "redis://127.0.0.1:1")
	for name, ask := range map[string]func(testing.TB){
		"Start":         func(t testing.TB) { Start(t) },
		"configured":    func(t testing.TB) { Start(t, "--save", "") },
		"StartCluster":  func(t testing.TB) { StartCluster(t) },
		"StartSentinel": func(t testing.TB) { StartSentinel(t) },
		"StartValkey":   func(t testing.TB) { StartValkey(t) },
	} {
		if did := testserver.EndOf(t, ask); did != "skip" {
			t.Errorf("%s: %q, want a skip", name, did)
		}
	}
}
