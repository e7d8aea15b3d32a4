package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

const noEviction = "noeviction"

// check is the look before the first claim. Some clients do not heed contexts: it may go on when its caller has gone,
// and the next caller takes another. Nobody else sees its report.
func (s *Store) check(ctx context.Context) error {
	var report dedupstore.Report
	var err error
	if !s.within(ctx, func() { report, err = s.examine(ctx) }) {
		return ctx.Err()
	}
	for _, w := range report.Warnings {
		s.config.Logger.WarnContext(ctx, "redisstore: "+w)
	}
	return err
}

// Check implements [dedupstore.Checker]. It looks at the server, in a Cluster at every master, and returns a
// [*dedupstore.SetupError] for one that is older than 6.2, that is a replica, that does not show its settings (INFO),
// or whose maxmemory-policy is not noeviction, even while maxmemory is not set: it can be set at any time. Other
// errors, such as LOADING, are returned as they are: they pass. The report says what survives a crash; where CONFIG GET
// is forbidden it says that this is unknown. Replicas, which may become masters, are not looked at. It ends with ctx if
// the client heeds contexts.
//
// Unlike the look before the first claim, it also tries what the scripts call, on a key of its own that lives for a
// millisecond, in a Cluster at the master of that key. It refuses a user, or a server, that lacks one of these commands
// (GET, PSETEX, PEXPIRE, PTTL, TYPE): claims would be granted whose outcomes cannot be stored. While a server runs no
// script, as when it is loading, a warning says that this is unknown.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	report, err := s.examine(ctx)
	if err != nil {
		return dedupstore.Report{}, err
	}
	// No record has such a name: "?" is escaped in theirs.
	refused, err := s.rdb.Eval(ctx, recordSource+rightsSource, []string{s.config.Prefix + ":?"}).Text()
	command, problem, _ := strings.Cut(refused, " ")
	var answered redis.Error
	switch {
	case forbidden(err):
		command, problem = "EVAL", err.Error()
	case errors.As(err, &answered): // such as LOADING and MOVED
		report.Warnings = append(report.Warnings, fmt.Sprintf("the server runs no script now, and whether the "+
			"client's user may call what those of the store do is unknown: %v; check again", err))
	case err != nil:
		return dedupstore.Report{}, fmt.Errorf("redisstore: check: %w", err)
	}
	if command != "" {
		return dedupstore.Report{}, unfit(addrOf(s.rdb), "refuses "+command+", and outcomes could not be stored: "+
			"allow it to the client's user, with all that the package doc of redisstore lists, and take no "+
			"rename-command for it", errors.New(problem))
	}
	return report, nil
}

// examine looks at the servers' settings.
func (s *Store) examine(ctx context.Context) (dedupstore.Report, error) {
	servers, err := s.servers(ctx)
	if err != nil {
		return dedupstore.Report{}, err
	}
	for _, v := range servers {
		if err := v.fit(s.config.AllowEviction); err != nil {
			return dedupstore.Report{}, err
		}
	}
	report := dedupstore.Report{
		Store:      "redis",
		Version:    join(servers, server.fullVersion),
		Durability: join(servers, server.durability),
		Warnings:   clientWarnings(s.rdb),
	}
	for _, v := range servers {
		for _, w := range v.warnings(s.config.Replicas) {
			if !slices.Contains(report.Warnings, w) {
				report.Warnings = append(report.Warnings, w)
			}
		}
	}
	_, single := s.rdb.(*redis.Client) // elsewhere one node's time could be taken for another's
	if single && servers[0].info["cluster_enabled"] == "1" {
		report.Warnings = append(report.Warnings, "the server is a node of a Redis Cluster: a redis.Client does not "+
			"follow MOVED, so that claims of keys which other nodes have, or get, fail; use redis.NewClusterClient")
	}
	old := slices.ContainsFunc(servers, func(v server) bool { return !atLeast(v.info["redis_version"], 7, 0) })
	s.plain.Store(single && !old)
	s.ready.passed.Store(true)
	return report, nil
}

// servers looks at every server that takes writes.
func (s *Store) servers(ctx context.Context) ([]server, error) {
	cluster, ok := s.rdb.(interface {
		ForEachMaster(context.Context, func(context.Context, *redis.Client) error) error
	})
	if !ok {
		v, err := look(ctx, addrOf(s.rdb), s.rdb)
		return []server{v}, err
	}
	var mu sync.Mutex
	var servers []server
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		v, err := look(ctx, c.Options().Addr, c)
		mu.Lock()
		defer mu.Unlock()
		servers = append(servers, v)
		return err
	})
	if err == nil && len(servers) == 0 {
		err = errors.New("redisstore: check: the cluster has no master")
	}
	slices.SortFunc(servers, func(a, b server) int { return cmp.Compare(a.addr, b.addr) })
	return servers, err
}

// addrOf says where the server of a client is, if it is one server.
func addrOf(rdb redis.UniversalClient) string {
	if c, ok := rdb.(*redis.Client); ok {
		return c.Options().Addr
	}
	return "of the given client"
}

// A server is what one server says about itself.
type server struct {
	addr string
	info map[string]string
	// Settings as CONFIG GET tells them; nil where it is forbidden.
	config map[string]string
}

var settings = [...]string{
	"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "min-replicas-to-write",
	"repl-diskless-sync-delay",
}

// look asks a server for its settings, all at once: a claim in shadow mode has a few milliseconds, and would never get
// past a look of several round trips.
func look(ctx context.Context, addr string, rdb redis.UniversalClient) (server, error) {
	pipe := rdb.Pipeline()
	info := pipe.Info(ctx)
	var asked [len(settings)]*redis.MapStringStringCmd
	for i, name := range settings {
		asked[i] = pipe.ConfigGet(ctx, name)
	}
	_, failed := pipe.Exec(ctx)
	text, err := info.Result()
	if err == nil && text == "" {
		err = unsaid(failed)
	}
	switch {
	case forbidden(err):
		return server{}, unfit(addr, "does not show its settings: allow INFO to the client's user (ACL: +info), or "+
			"set Config.SkipCheck after looking at the settings yourself", err)
	case err != nil:
		return server{}, fmt.Errorf("redisstore: check: server %s: %w", addr, err)
	}
	v := server{addr: addr, info: map[string]string{}}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			v.info[name] = value
		}
	}
	config := map[string]string{}
	for i, name := range settings {
		values, err := asked[i].Result()
		switch {
		case forbidden(err):
			return v, nil
		case err != nil:
			return server{}, fmt.Errorf("redisstore: check: server %s: %w", addr, err)
		}
		config[name] = values[name]
	}
	v.config = config
	return v, nil
}

// forbidden reports whether the server will never answer the command to this user: by its ACL, or because the command
// has been taken away, which Redis tells by its text alone. Other refusals, such as LOADING, pass.
func forbidden(err error) bool {
	return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "unknown command")
}

// fit says why the server cannot be used.
func (v server) fit(allowEviction bool) error {
	version, policy := v.info["redis_version"], v.info["maxmemory_policy"]
	switch {
	case !atLeast(version, 6, 2):
		return unfit(v.addr, fmt.Sprintf("has redis_version %q: 6.2 or later is needed", version), nil)
	case v.info["role"] == "slave":
		return unfit(v.addr, "is a replica: claims need the master: give its address, or use Sentinel or Cluster", nil)
	case policy != noEviction && !allowEviction:
		return unfit(v.addr, fmt.Sprintf("has maxmemory-policy %q: it lets Redis drop claims silently, and dropped "+
			"claims run again: set maxmemory-policy noeviction, or accept it with Config.AllowEviction", policy), nil)
	}
	return nil
}

// atLeast compares a version such as "6.2.14".
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

func (v server) fullVersion() string {
	if valkey := v.info["valkey_version"]; valkey != "" {
		return "valkey " + valkey
	}
	return v.info["redis_version"]
}

// appendOnly reports whether there is an append-only file. While a server loads one, INFO says that it has none.
func (v server) appendOnly() bool {
	return v.info["aof_enabled"] == "1" || v.info["loading"] == "1" && v.config["appendonly"] == "yes"
}

// durability says in words what survives a crash.
func (v server) durability() string {
	if v.appendOnly() {
		switch v.config["appendfsync"] {
		case "always":
			return "append-only file, synced before every reply: a crash loses nothing that was confirmed, as long " +
				"as the disk keeps its word"
		case "everysec":
			return "append-only file, synced once a second: a crash can lose about the last two seconds"
		case "no":
			return "append-only file, synced when the operating system likes: a crash of the machine can lose half " +
				"a minute"
		}
		return "append-only file; how often it is synced is unknown, as CONFIG GET is not allowed"
	}
	switch save, known := v.config["save"]; {
	case !known:
		return "no append-only file; whether snapshots are taken is unknown, as CONFIG GET is not allowed"
	case save == "":
		return "none: every record is lost when the server stops"
	default:
		return "snapshots only: a crash loses everything since the last one"
	}
}

// warnings are what should be changed; needed is how many replicas claims wait for.
func (v server) warnings(needed int) (w []string) {
	warn := func(wrong bool, format string, values ...any) {
		if wrong {
			w = append(w, fmt.Sprintf(format, values...))
		}
	}
	policy, fsync, delay := v.info["maxmemory_policy"], v.config["appendfsync"], v.config["repl-diskless-sync-delay"]
	replicas, _ := strconv.Atoi(v.info["connected_slaves"])
	lax := fsync == "everysec" || fsync == "no"
	warn(policy != noEviction, "maxmemory-policy is %s: Redis may drop claims silently, and their messages run again; "+
		"set noeviction", policy)
	warn(!v.appendOnly(), "appendonly is no: a crash of the server forgets claims, and their messages run again; "+
		"set appendonly yes and appendfsync always")
	warn(v.appendOnly() && lax, "appendfsync is %s: a crash of the server forgets the last claims, and their "+
		"messages run again; set always", fsync)
	warn(v.appendOnly() && !lax && v.config["no-appendfsync-on-rewrite"] == "yes", "no-appendfsync-on-rewrite is yes: "+
		"nothing is synced while the append-only file is rewritten; set no")
	warn(replicas > 0 && v.config["min-replicas-to-write"] == "0", "min-replicas-to-write is 0: a master that has "+
		"lost its replicas goes on confirming claims that a failover forgets; set 1")
	warn(replicas > 0 && delay != "" && delay != "0", "repl-diskless-sync-delay is %s: a replica that starts is "+
		"empty for as many seconds, and a failover to it forgets all; set 0", delay)
	warn(replicas < needed, "connected replicas are %d: Config.Replicas is %d, so every claim is refused until "+
		"there are more",
		replicas, needed)
	return w
}

// clientWarnings looks at the settings of the client.
func clientWarnings(rdb redis.UniversalClient) (w []string) {
	t, known := timeoutsOf(rdb)
	if !known {
		return nil
	}
	if !t.contexts {
		w = append(w, "ContextTimeoutEnabled of the go-redis client is false: contexts do not interrupt what waits "+
			"for the network; set it")
	}
	_, cluster := rdb.(*redis.ClusterClient) // it looks at the layout without a context
	if (t.read <= 0 || t.write <= 0) && (cluster || t.deaf()) {
		w = append(w, "ReadTimeout or WriteTimeout of the go-redis client is off: a node that hangs can keep its "+
			"connections, and a cluster client from following a failover, until TCP gives up; set it")
	}
	return w
}

// join lists what the servers say, each thing once.
func join(servers []server, say func(server) string) string {
	var said []string
	for _, v := range servers {
		if s := say(v); !slices.Contains(said, s) {
			said = append(said, s)
		}
	}
	return strings.Join(said, "; ")
}
