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

// check is the look before the first claim. Nobody else sees its report. Some clients do not heed contexts, so it may
// go on when its caller has gone. Another caller takes a look of its own.
func (s *Store) check(ctx context.Context) error {
	var report dedupstore.Report
	var err error
	if !s.within(ctx, func() { report, err = s.examine(ctx) }) {
		return ctx.Err()
	}
	if err != nil || s.ready.Swap(true) {
		return err
	}
	for _, w := range report.Warnings {
		s.config.Logger.WarnContext(ctx, "redisstore: the setup can lose or refuse claims", "warning", w)
	}
	return nil
}

// Check implements [dedupstore.Checker]. It looks at the server, in a Cluster at every master. It returns a
// [*dedupstore.SetupError] for a server
//
//   - that is older than 6.2, or a replica;
//   - that does not show its settings (INFO);
//   - whose maxmemory-policy is not noeviction, even without maxmemory, which can be set at any time.
//
// Other errors, such as LOADING, are returned as they are, because they pass. The report says what survives a crash, or
// that this is unknown where CONFIG GET is forbidden. Check does not look at replicas, which may become masters. It
// ends with ctx if the client heeds contexts.
//
// Unlike the look before the first claim, Check also tries the commands that the scripts call. It uses a key of its own
// that lives for a millisecond, in a Cluster at the master of that key. It refuses a user or a server without one of
// them (GET, PSETEX, PEXPIRE, PTTL, TYPE): claims would be granted whose outcomes cannot be stored. While a server runs
// no script, as when it is loading, a warning says that this is unknown.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	report, err := s.examine(ctx)
	if err != nil {
		return dedupstore.Report{}, err
	}
	s.ready.Store(true)
	// No record has such a name: "?" is escaped in theirs.
	refused, err := s.rdb.Eval(ctx, source("record", "rights"), []string{s.config.Prefix + ":?"}).Text()
	command, problem, _ := strings.Cut(refused, " ")
	_, answered := errors.AsType[redis.Error](err)
	switch {
	case forbidden(err):
		command, problem = "EVAL", err.Error()
	case answered: // such as LOADING and MOVED
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
	var versions, durabilities, losses []string
	warnings, old := clientWarnings(s.rdb), false
	for _, v := range servers {
		if err := v.fit(s.config.AllowEviction); err != nil {
			return dedupstore.Report{}, err
		}
		versions, durabilities = append(versions, v.fullVersion()), append(durabilities, v.durability())
		losses = append(losses, v.losses()...)
		warnings = append(warnings, v.shortage(s.config.Replicas)...)
		old = old || !atLeast(v.info["redis_version"], 7, 0)
	}
	_, single := s.rdb.(*redis.Client) // elsewhere one node's time could be taken for another's
	if single && servers[0].info["cluster_enabled"] == "1" {
		warnings = append(warnings, "the server is a node of a Redis Cluster: a redis.Client does not follow MOVED, "+
			"and claims of keys which other nodes have, or get, fail; use redis.NewClusterClient")
	}
	s.plain.Store(single && !old && !s.config.SkipCheck)
	return dedupstore.Report{
		Store: "redis", Version: strings.Join(each(versions), "; "), Durability: strings.Join(each(durabilities), "; "),
		Warnings: each(append(warnings, losses...)), Losses: each(losses),
	}, nil
}

// each returns what the servers say, each thing once.
func each(said []string) []string {
	slices.Sort(said)
	return slices.Compact(said)
}

// servers looks at every server that takes writes.
func (s *Store) servers(ctx context.Context) ([]server, error) {
	if s.cluster == nil {
		v, err := look(ctx, addrOf(s.rdb), s.rdb)
		return []server{v}, err
	}
	var mu sync.Mutex
	var servers []server
	err := s.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		v, err := look(ctx, addrOf(c), c)
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
	addr   string
	info   map[string]string
	config map[string]string // as CONFIG GET tells it; nil where that is forbidden
}

var settings = [...]string{
	"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "min-replicas-to-write",
	"repl-diskless-sync-delay",
}

// look asks a server for its settings, all at once. A claim in shadow mode has only a few milliseconds, too few for
// several round trips.
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
	if forbidden(err) {
		return server{}, unfit(addr, "does not show its settings: allow INFO to the client's user (ACL: +info), or "+
			"set Config.SkipCheck after looking at the settings yourself", err)
	}
	v := server{addr, map[string]string{}, map[string]string{}}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			v.info[name] = value
		}
	}
	for i, name := range settings {
		v.config[name], err = asked[i].Val()[name], cmp.Or(err, asked[i].Err())
	}
	switch {
	case forbidden(err):
		v.config = nil
	case err != nil:
		return server{}, fmt.Errorf("redisstore: check: server %s: %w", addr, err)
	}
	return v, nil
}

// forbidden reports whether the server will never answer the command to this user: by its ACL, or because the command
// was taken away, which only Redis's text shows. Other refusals, such as LOADING, pass.
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
	var a, b int
	n, _ := fmt.Sscanf(version, "%d.%d", &a, &b)
	return n == 2 && (a > major || a == major && b >= minor)
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
	fsync, save := v.config["appendfsync"], v.config["save"]
	switch {
	case v.appendOnly() && v.config == nil:
		return "append-only file; how often it is synced is unknown, as CONFIG GET is not allowed"
	case v.appendOnly() && fsync == "always":
		return "append-only file, synced before every reply: a crash loses nothing that the disk has confirmed and kept"
	case v.appendOnly() && fsync == "everysec":
		return "append-only file, synced once a second: a crash can lose about the last two seconds"
	case v.appendOnly():
		return "append-only file, synced when the system likes: a crash of the machine can lose half a minute"
	case v.config == nil:
		return "no append-only file; whether snapshots are taken is unknown, as CONFIG GET is not allowed"
	case save == "":
		return "none: every record is lost when the server stops"
	}
	return "snapshots only: a crash loses everything since the last one"
}

// shortage warns of too few replicas. Needed is how many claims wait for.
func (v server) shortage(needed int) []string {
	if v.replicas() >= needed {
		return nil
	}
	return []string{fmt.Sprintf("connected replicas are %d: Config.Replicas is %d, so every claim is refused "+
		"until there are more", v.replicas(), needed)}
}

func (v server) replicas() int {
	n, _ := strconv.Atoi(v.info["connected_slaves"])
	return n
}

// losses lists the settings that can lose records.
func (v server) losses() (w []string) {
	policy, fsync, delay := v.info["maxmemory_policy"], v.config["appendfsync"], v.config["repl-diskless-sync-delay"]
	replicas := v.replicas()
	lax := fsync == "everysec" || fsync == "no"
	for _, setting := range [...]struct {
		wrong   bool
		warning string
	}{
		{policy != noEviction, "maxmemory-policy is " + policy + ": Redis may drop claims silently, and their " +
			"messages run again; set noeviction"},
		{!v.appendOnly(), "appendonly is no: a crash of the server forgets claims, and their messages run again; " +
			"set appendonly yes and appendfsync always"},
		{v.appendOnly() && lax, "appendfsync is " + fsync + ": a crash of the server forgets the last claims, and " +
			"their messages run again; set always"},
		{v.appendOnly() && !lax && v.config["no-appendfsync-on-rewrite"] == "yes", "no-appendfsync-on-rewrite is " +
			"yes: nothing is synced while the append-only file is rewritten; set no"},
		{replicas > 0 && v.config["min-replicas-to-write"] == "0", "min-replicas-to-write is 0: a master that has " +
			"lost its replicas goes on confirming claims that a failover forgets; set 1"},
		{replicas > 0 && delay != "" && delay != "0", "repl-diskless-sync-delay is " + delay + ": a replica that " +
			"starts is empty for as many seconds, and a failover to it forgets all; set 0"},
	} {
		if setting.wrong {
			w = append(w, setting.warning)
		}
	}
	return w
}

// clientWarnings looks at the settings of the client.
func clientWarnings(rdb redis.UniversalClient) (w []string) {
	t, known := timeoutsOf(rdb)
	if known && !t.contexts {
		w = append(w, "ContextTimeoutEnabled of the go-redis client is false: contexts do not interrupt what waits "+
			"for the network; set it")
	}
	_, cluster := rdb.(*redis.ClusterClient) // it looks at the layout without a context
	if known && (t.read <= 0 || t.write <= 0) && (cluster || t.deaf()) {
		w = append(w, "ReadTimeout or WriteTimeout of the go-redis client is off: a node that hangs can keep its "+
			"connections, and a cluster client from following a failover, until TCP gives up; set it")
	}
	return w
}
