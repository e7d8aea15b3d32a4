package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

const (
	sentinelMaster = "oncemill"             // the name under which Sentinels know the master
	sentinelDown   = 500 * time.Millisecond // once a test has killed it
	sentinelCalm   = 15 * time.Second       // else: a busy machine is to replace nobody
	trio           = 3
)

// A Sentinel is a Redis master with two replicas, and three Sentinels that agree by two when the master is down, for
// one test. All of them reach each server through a link of its own, which can hold back what a master sends to its
// replicas.
type Sentinel struct {
	Nodes []*Server // the first master first; Addr and Client lead to the server itself, not through its link

	t     testing.TB
	links []*link // of the nodes
	addrs []string
}

// StartSentinel starts the servers from the redis-server in PATH; arguments go to each of the three that hold data. It
// returns when the replicas hold what the master does, and the Sentinels know all servers and one another. A master
// that a test kills is replaced after half a second, and one that just does not answer, after 15.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	needRedis(t)
	s := &Sentinel{t: t}
	for i := range trio {
		k, l := newLink(t)
		own := []string{"--replica-announce-ip", "127.0.0.1", "--replica-announce-port", strconv.Itoa(k.port)}
		if i > 0 {
			own = append(own, "--replicaof", "127.0.0.1", strconv.Itoa(s.links[0].port))
		}
		node := &Server{t: t, dir: t.TempDir(), args: append(own, args...)}
		node.startOnFreePort(testserver.FreePort)
		k.start(l, node.Addr)
		s.Nodes, s.links = append(s.Nodes, node), append(s.links, k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testserver.WaitLimit)
	defer cancel()
	for _, node := range s.Nodes[1:] {
		if err := testserver.Until(ctx, func() error { return replicating(ctx, node.Client()) }); err != nil {
			t.Fatalf("testserver: replica: %v", err)
		}
	}
	for range trio {
		s.startSentinel()
	}
	for _, addr := range s.addrs {
		if err := testserver.Until(ctx, func() error { return s.sentinelReady(ctx, addr) }); err != nil {
			t.Fatalf("testserver: Sentinel: %v", err)
		}
	}
	testserver.Record(t, fmt.Sprintf("redis-server %s (started, Sentinel with %d servers)", redisVersion(t), trio))
	return s
}

// replicating succeeds when a replica has all that its master had when they connected.
func replicating(ctx context.Context, rdb *redis.Client) error {
	switch info, err := rdb.Info(ctx, "replication").Result(); {
	case err != nil:
		return err
	case !strings.Contains(info, "master_link_status:up"):
		return errors.New("INFO replication has no master_link_status:up")
	}
	return nil
}

func (s *Sentinel) startSentinel() {
	s.t.Helper()
	err := testserver.OnFreePort(func(port int) error {
		p, err := s.runSentinel(port)
		if err != nil {
			return err
		}
		s.addrs = append(s.addrs, testserver.Loopback(port))
		s.t.Cleanup(func() { p.Kill() })
		return nil
	})
	if err != nil {
		s.t.Fatalf("testserver: Sentinel: %v", err)
	}
}

func (s *Sentinel) runSentinel(port int) (*testserver.Process, error) {
	dir := s.t.TempDir()
	config := filepath.Join(dir, "sentinel.conf") // it writes to this file
	lines := []string{
		fmt.Sprintf("port %d", port),
		"bind 127.0.0.1",
		"dir " + dir,
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", sentinelMaster, s.links[0].port),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", sentinelMaster, sentinelCalm.Milliseconds()),
		// An election without a winner is repeated after twice that.
		fmt.Sprintf("sentinel failover-timeout %s 5000", sentinelMaster),
		fmt.Sprintf("sentinel parallel-syncs %s 2", sentinelMaster),
	}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	command := []string{redisProgram, config, "--sentinel"}
	return testserver.StartServer(dir, command, testserver.WaitLimit, answers(port))
}

// sentinelReady succeeds when a Sentinel knows the replicas and the other Sentinels, and takes all for healthy.
func (s *Sentinel) sentinelReady(ctx context.Context, addr string) error {
	rdb := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	state, err := rdb.Master(ctx, sentinelMaster).Result()
	if err != nil {
		return err
	}
	for name, want := range map[string]string{"num-slaves": "2", "num-other-sentinels": "2", "flags": "master"} {
		if state[name] != want {
			return fmt.Errorf("SENTINEL MASTER has %s %s, want %s", name, state[name], want)
		}
	}
	return rdb.CkQuorum(ctx, sentinelMaster).Err()
}

// FailoverOptions returns new options for a client that asks the Sentinels for the master.
func (s *Sentinel) FailoverOptions() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName: sentinelMaster, SentinelAddrs: slices.Clone(s.addrs), ContextTimeoutEnabled: true, DialerRetries: 1,
	}
}

// Client returns a new client that asks the Sentinels for the master, which is closed when the test ends.
func (s *Sentinel) Client() *redis.Client {
	rdb := redis.NewFailoverClient(s.FailoverOptions())
	s.t.Cleanup(func() { rdb.Close() })
	return rdb
}

// Master is the server that a Sentinel calls the master at this moment. It may be dead.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	i, err := s.master()
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	return s.Nodes[i]
}

// MasterAddr is where clients and Sentinels reach the master: its link.
func (s *Sentinel) MasterAddr() string {
	s.t.Helper()
	i, err := s.master()
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	return testserver.Loopback(s.links[i].port)
}

func (s *Sentinel) master() (int, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), testserver.WaitLimit)
	defer cancel()
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.addrs[0], ContextTimeoutEnabled: true})
	defer rdb.Close()
	addr, err := rdb.GetMasterAddrByName(ctx, sentinelMaster).Result()
	if err != nil {
		return 0, fmt.Errorf("ask a Sentinel for the master: %w", err)
	}
	for i, k := range s.links {
		if net.JoinHostPort(addr[0], addr[1]) == testserver.Loopback(k.port) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("a Sentinel calls %v the master, which is none of the servers", addr)
}

// HoldReplication holds back what servers send to their replicas, until ReleaseReplication. The links stay open, the
// replicas are there, and what they acknowledge stays where it is.
func (s *Sentinel) HoldReplication() {
	for _, k := range s.links {
		k.freeze()
	}
}

// ReleaseReplication ends a HoldReplication.
func (s *Sentinel) ReleaseReplication() {
	for _, k := range s.links {
		k.release()
	}
}

// KillMaster ends the master with SIGKILL, and returns it. What was held back of what it sent is lost.
func (s *Sentinel) KillMaster() *Server {
	s.t.Helper()
	i, err := s.master()
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	s.downAfter(sentinelDown)
	s.Nodes[i].Kill()
	s.links[i].cut()
	return s.Nodes[i]
}

// downAfter tells the Sentinels after how long without an answer a server is down.
func (s *Sentinel) downAfter(d time.Duration) {
	s.t.Helper()
	for _, addr := range s.addrs {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: addr})
		err := rdb.Set(s.t.Context(), sentinelMaster, "down-after-milliseconds", fmt.Sprint(d.Milliseconds())).Err()
		rdb.Close()
		if err != nil {
			s.t.Fatalf("testserver: Sentinel %s: %v", addr, err)
		}
	}
}

// AwaitMaster waits until the Sentinels name another master than the given one and it takes writes, and returns it.
func (s *Sentinel) AwaitMaster(not *Server) *Server {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*testserver.WaitLimit)
	defer cancel()
	var next *Server
	err := testserver.Until(ctx, func() error {
		i, err := s.master()
		if err != nil {
			return err
		}
		if next = s.Nodes[i]; next == not {
			return errors.New("the Sentinels have not found another master")
		}
		rdb := redis.NewClient(next.Options())
		defer rdb.Close()
		return takesWrites(ctx, rdb)
	})
	if err != nil {
		s.t.Fatalf("testserver: await a new master: %v", err)
	}
	s.downAfter(sentinelCalm)
	return next
}

// takesWrites succeeds when the server is a master.
func takesWrites(ctx context.Context, rdb *redis.Client) error {
	role, err := rdb.Do(ctx, "ROLE").Slice()
	if err != nil {
		return err
	}
	if len(role) == 0 || role[0] != "master" {
		return fmt.Errorf("its role is %v", role)
	}
	return nil
}
