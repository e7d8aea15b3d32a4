package redisstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

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
}

const (
	defaultPrefix = "oncemill"
	maxPrefix     = 128
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	return c
}

func (c Config) validate() error {
	problem := ""
	switch {
	case len(c.Prefix) > maxPrefix:
		problem = fmt.Sprintf("is %d bytes long, the limit is %d", len(c.Prefix), maxPrefix)
	case !utf8.ValidString(c.Prefix):
		problem = fmt.Sprintf("is not valid UTF-8: %q", c.Prefix)
	case strings.ContainsAny(c.Prefix, "{}"):
		problem = fmt.Sprintf("is %q: braces make a hash tag in Redis Cluster", c.Prefix)
	case strings.ContainsFunc(c.Prefix, unicode.IsControl):
		problem = fmt.Sprintf("contains a control character: %q", c.Prefix)
	default:
		return nil
	}
	return &dedupstore.InvalidError{Field: "Config.Prefix", Problem: problem}
}
