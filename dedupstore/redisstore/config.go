package redisstore

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Prefix begins the names of all keys, followed by a colon. Empty: "oncemill". At most 128 bytes without control
	// characters and braces, which Redis Cluster would take for a hash tag. Another prefix is another set of records:
	// what was done under the old one runs again.
	Prefix string

	// AllowEviction accepts a server whose maxmemory-policy may evict records. Each evicted record lets its message
	// run again, and nothing says so. False: such a server is refused.
	AllowEviction bool

	// SkipCheck leaves out the look at the server before the first claim, for users who may not call INFO, and for
	// fakes that do not know it. False: the store looks. Check can be called in either case.
	SkipCheck bool

	// Replicas is how many replicas have to acknowledge a claim (WAIT) before a run is granted; 0: none. It makes a
	// claim that a failover forgets much rarer, not impossible, and costs a round trip to the replicas. They have a
	// third of the client's ReadTimeout, at most a second. With fewer acknowledgements the claim is given back, and no
	// run is granted: [dedupstore.ErrNotDurable]. It needs a [redis.Client] or a [redis.ClusterClient]. In a Cluster,
	// claims of a slot that is being moved fail until it has been.
	Replicas int

	// Logger gets the warnings of the look at the server before the first claim: settings by which Redis forgets
	// claims. If Check is called before, its caller has the report, and the log gets nothing. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Prefix, c.Logger = cmp.Or(c.Prefix, "oncemill"), cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate(rdb redis.UniversalClient) error {
	odd := func(r rune) bool { return unicode.IsControl(r) || r == '{' || r == '}' || r == utf8.RuneError }
	field, problem := "Config.Replicas", ""
	_, ring := rdb.(*redis.Ring)
	switch {
	case isnil.Nil(rdb):
		field, problem = "rdb", "is nil"
	case ring:
		field = "rdb"
		problem = "is a *redis.Ring, which moves keys when a server is down: use a single server, Sentinel or Cluster"
	case len(c.Prefix) > 128 || strings.ContainsFunc(c.Prefix, odd):
		field, problem = "Config.Prefix", fmt.Sprintf("is %q, want at most 128 bytes of UTF-8 without control "+
			"characters and braces, a hash tag of Redis Cluster", c.Prefix)
	case c.Replicas < 0:
		problem = fmt.Sprintf("is %d, want at least 0", c.Replicas)
	case c.Replicas > 0:
		if _, known := timeoutsOf(rdb); !known {
			problem = fmt.Sprintf("needs a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
		}
	}
	if problem == "" {
		return nil
	}
	return &dedupstore.InvalidError{Package: "redisstore", Field: field, Problem: problem}
}

// timeouts are how long a client waits for the network.
type timeouts struct {
	contexts    bool          // their deadlines end it
	read, write time.Duration // 0: without end; less: also whatever the contexts say
}

// timeoutsOf returns those of a client whose kind is known.
func timeoutsOf(rdb redis.UniversalClient) (t timeouts, known bool) {
	switch rdb := rdb.(type) {
	case *redis.Client:
		o := rdb.Options()
		return timeouts{o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout}, true
	case *redis.ClusterClient:
		o := rdb.Options()
		return timeouts{o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout}, true
	}
	return t, false
}

// deaf tells whether the client may wait for the network although the context has ended.
func (t timeouts) deaf() bool { return !t.contexts || t.read < 0 || t.write < 0 }

// replicas is how long replicas may take to acknowledge a claim: the client must not give up before.
func (t timeouts) replicas() time.Duration {
	if t.read <= 0 {
		return time.Second
	}
	return min(time.Second, max(t.read/3, time.Millisecond))
}
