package webhook

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// Config configures a Receiver. Sender, Verifier and Topic must be set.
type Config struct {
	// Sender names who sends, and with it the space in which event IDs are unique: one account or endpoint of a service,
	// such as "stripe". It is part of every message ID: renaming it makes every event a new one.
	Sender string

	// Verifier proves requests. One receiver trusts one sender: each has keys of its own.
	Verifier Verifier

	// Topic is where messages go.
	Topic string

	// Tenant separates data that must not share event IDs. A receiver is for one tenant, and costs little: make one for each,
	// with the tenant's keys, and choose by path. Empty: "default".
	Tenant string

	// Group is the consumer group of the claims. Empty: "webhooks".
	Group string

	// Headers are the names of request headers that go on with the message, beside those that the verifier asks for,
	// Content-Type and Content-Encoding. In the message names are in lower case, and several values of one are joined with
	// ", ". Names of headers that carry credentials are refused, those that begin with "oncemill-", and Host, which is not in
	// the header of a http.Request.
	Headers []string

	// MaxBody is how many bytes a body may have. GitHub sends up to 25 MB. Zero: 1 MiB.
	MaxBody int64

	// Tolerance is how far the signed time of a request may be from this machine's clock, either way. The guard's dedup
	// window must be at least twice as long, so that whatever is young enough to be proven is still remembered. Zero: 5 min.
	Tolerance time.Duration

	// MaxWait is how long a request waits for another one of the same event before it is answered with 503. Zero: not at all.
	MaxWait time.Duration

	// Timeout bounds claiming and publishing, which go on when the sender hangs up. To record what was published is
	// tried until the lease ends. Zero: 10 s.
	Timeout time.Duration

	// Wake is called after an event was published and recorded, such as an outbox's Wake. Nil: nothing is.
	Wake func()
}

func (c Config) withDefaults() Config {
	if c.Tenant == "" {
		c.Tenant = "default"
	}
	if c.Group == "" {
		c.Group = "webhooks"
	}
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	}
	if c.Tolerance == 0 {
		c.Tolerance = 5 * time.Minute
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Wake == nil {
		c.Wake = func() {}
	}
	c.Headers = slices.Clone(c.Headers)
	return c
}

// keptBack are headers that cannot go on: credentials, and what net/http takes out of a request's header.
var keptBack = []string{"Authorization", "Cookie", "Proxy-Authorization", "Set-Cookie", "Host", "Trailer", "Transfer-Encoding"}

// validate checks a config after its defaults were filled in.
func (c Config) validate(p oncemill.Policy) error {
	switch {
	case c.Verifier == nil:
		return &InvalidError{"Config.Verifier", "is nil"}
	case strings.HasPrefix(c.Sender, "~"):
		return &InvalidError{"Config.Sender", fmt.Sprintf("is %q: names that begin with \"~\" are the guard's own", c.Sender)}
	case c.Topic == "":
		return &InvalidError{"Config.Topic", "is empty"}
	case c.MaxBody < 1:
		return &InvalidError{"Config.MaxBody", fmt.Sprintf("is %d, want at least 1", c.MaxBody)}
	case c.Tolerance < 0:
		return &InvalidError{"Config.Tolerance", fmt.Sprintf("is %v, want more than 0", c.Tolerance)}
	case p.Window/2 < c.Tolerance:
		return &InvalidError{"Config.Tolerance", fmt.Sprintf("is %v, more than half of the guard's dedup window (%v): a request could be proven and forgotten", c.Tolerance, p.Window)}
	case c.MaxWait < 0:
		return &InvalidError{"Config.MaxWait", fmt.Sprintf("is %v, want at least 0", c.MaxWait)}
	case c.Timeout <= c.MaxWait:
		return &InvalidError{"Config.Timeout", fmt.Sprintf("is %v, want more than Config.MaxWait (%v)", c.Timeout, c.MaxWait)}
	case p.ExpiredLease == oncemill.Park:
		return &InvalidError{"guard", `has a policy with ExpiredLease "park": an event would be lost where it can be published again under its ID`}
	case p.StoreDown == oncemill.FailOpen:
		return &InvalidError{"guard", `has a policy with StoreDown "open": while the store is down each retry would be enqueued`}
	case p.Shadow:
		return &InvalidError{"guard", "has a policy with Shadow: each retry would be enqueued"}
	}
	for i, name := range c.Headers {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if name == "" || strings.HasPrefix(canonical, "Oncemill-") || slices.Contains(keptBack, canonical) {
			return &InvalidError{fmt.Sprintf("Config.Headers[%d]", i), fmt.Sprintf("is %q, which does not go on", name)}
		}
	}
	probe := dedupstore.Key{Tenant: c.Tenant, Group: c.Group, Handler: c.Sender, ID: "probe"}
	if err := probe.Validate(); err != nil {
		return fmt.Errorf("webhook: Config.Tenant, Group or Sender (as handler): %w", err)
	}
	return nil
}
