package redisstore

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Prefix is what the names of all keys begin with, followed by a colon. Empty means "oncemill". At most 128 bytes
	// without control characters and braces, which Redis Cluster would take for a hash tag. Another prefix is another
	// set of records: what was done under the old one runs again.
	Prefix string

	// AllowEviction accepts a server whose maxmemory-policy may evict records. Each evicted record lets its message
	// run again, and nothing says so. False: such a server is refused.
	AllowEviction bool

	// SkipCheck leaves out the look at the server before the first claim, for users who may not call INFO, and for
	// fakes that do not know it. False: the store looks. Check can be called in either case.
	SkipCheck bool

	// Replicas is how many replicas have to acknowledge a claim (WAIT) before a run is granted; 0: none. It makes a claim
	// that a failover forgets much rarer, not impossible, and costs a round trip to the replicas. Fewer acknowledgements
	// are a [*ReplicationError]: no run is granted, and the claim is given back. It needs a [redis.Client] or a
	// [redis.ClusterClient]; with the latter, claims of a slot that is being moved fail until it has been.
	Replicas int

	// ReplicaTimeout is how long the replicas have for that, at least a millisecond and less than the ReadTimeout of the
	// client. Guards want it to be less than a sixth of Policy.Lease, and less than 5 s. Zero means one second. It is not used
	// without Replicas.
	ReplicaTimeout time.Duration

	// CacheEntries is how many finished outcomes are kept in this process, to answer further duplicates without a round
	// trip; 0: none. Kept are successes that a duplicate has read, with results of at most 4 KiB, the last asked for, and
	// never longer than their window. A record that is deleted, or that Redis loses, is still answered from here, and so are guards while they take Redis to
	// be down. Claims that were answered so are counted with OpenTelemetry's global meter provider (oncemill.cache.hits).
	CacheEntries int

	// Logger gets what the look at the server before the first claim warns of: settings by which Redis forgets claims. It
	// gets nothing if Check is called before, whose caller has the report. Nil: slog.Default().
	Logger *slog.Logger
}

const (
	defaultPrefix         = "oncemill"
	defaultReplicaTimeout = time.Second
	maxPrefix             = 128
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.ReplicaTimeout == 0 {
		c.ReplicaTimeout = defaultReplicaTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate(rdb redis.UniversalClient) error {
	if problem := c.prefixProblem(); problem != "" {
		return &dedupstore.InvalidError{Field: "Config.Prefix", Problem: problem}
	}
	client, known := timeoutsOf(rdb)
	switch {
	case c.CacheEntries < 0:
		return &dedupstore.InvalidError{Field: "Config.CacheEntries", Problem: fmt.Sprintf("is %d, want at least 0", c.CacheEntries)}
	case c.Replicas < 0:
		return &dedupstore.InvalidError{Field: "Config.Replicas", Problem: fmt.Sprintf("is %d, want at least 0", c.Replicas)}
	case c.Replicas == 0:
		return nil
	case !known:
		return &dedupstore.InvalidError{Field: "Config.Replicas", Problem: fmt.Sprintf("needs a *redis.Client or a *redis.ClusterClient, not a %T", rdb)}
	case c.ReplicaTimeout < time.Millisecond:
		return &dedupstore.InvalidError{Field: "Config.ReplicaTimeout", Problem: fmt.Sprintf("is %v, want at least 1ms", c.ReplicaTimeout)}
	case client.read > 0 && c.ReplicaTimeout >= client.read:
		return &dedupstore.InvalidError{Field: "Config.ReplicaTimeout", Problem: fmt.Sprintf(
			"is %v, want less than the ReadTimeout of the client, which is %v", c.ReplicaTimeout, client.read)}
	}
	return nil
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

func (c Config) prefixProblem() string {
	switch {
	case len(c.Prefix) > maxPrefix:
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(c.Prefix), maxPrefix)
	case !utf8.ValidString(c.Prefix):
		return fmt.Sprintf("is not valid UTF-8: %q", c.Prefix)
	case strings.ContainsAny(c.Prefix, "{}"):
		return fmt.Sprintf("is %q: braces make a hash tag in Redis Cluster", c.Prefix)
	case strings.ContainsFunc(c.Prefix, unicode.IsControl):
		return fmt.Sprintf("contains a control character: %q", c.Prefix)
	}
	return ""
}
