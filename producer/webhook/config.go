package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Config configures a Receiver. Sender, Verifier and Topic must be set.
type Config struct {
	// Sender names the sender, within which event IDs are unique: one account or endpoint of a service, such as
	// "stripe". Claims are kept under it, and it is part of every message ID. With another name every event is a new
	// one.
	Sender string

	// Verifier proves requests. One receiver trusts one sender, because each sender has its own keys.
	Verifier Verifier

	// Topic is where messages go.
	Topic string

	// Tenant separates data that must not share event IDs. Receivers cost little: make one for each tenant, with its
	// keys, and choose by path. Empty: "default".
	Tenant string

	// Group is the consumer group of the claims. Empty: "webhooks".
	Group string

	// MaxBody is how many bytes a body may have. GitHub sends up to 25 MB. Zero: 1 MiB.
	MaxBody int64

	// MaxWait is how long a request waits for another one of the same event, before a 503. Zero: not at all.
	MaxWait time.Duration

	// Wake is called after an event was published and recorded, such as an outbox's Wake. Nil: nothing is.
	Wake func()
}

const (
	// tolerance is how far the signed time of a request may be from this machine's clock, either way.
	tolerance = 5 * time.Minute

	// timeout bounds claiming and publishing, beside Config.MaxWait. They go on when the sender hangs up.
	timeout = 10 * time.Second
)

func (c Config) withDefaults() Config {
	c.Tenant = cmp.Or(c.Tenant, "default")
	c.Group = cmp.Or(c.Group, "webhooks")
	c.MaxBody = cmp.Or(c.MaxBody, 1<<20)
	if c.Wake == nil {
		c.Wake = func() {}
	}
	return c
}

// validate checks a config after its defaults were filled in, and the guard's policy.
func (c Config) validate(p oncemill.Policy) error {
	probe := dedupstore.Key{Tenant: c.Tenant, Group: c.Group, Handler: c.Sender, ID: "probe"}
	invalid := probe.Validate()
	switch {
	case c.Verifier == nil:
		return errors.New("webhook: Config.Verifier is nil")
	case c.Sender == "":
		return errors.New("webhook: Config.Sender is empty: claims are kept under it; another name enqueues all again")
	case strings.HasPrefix(c.Sender, "~"):
		return fmt.Errorf(`webhook: Config.Sender is %q: names that begin with "~" are the guard's own`, c.Sender)
	case ids.IsOfStep(c.Sender):
		return fmt.Errorf("webhook: Config.Sender is %q: names with %q are those of steps", c.Sender, ids.StepMark)
	case c.Topic == "":
		return errors.New("webhook: Config.Topic is empty")
	case c.MaxBody < 1:
		return fmt.Errorf("webhook: Config.MaxBody is %d, want at least 1", c.MaxBody)
	case c.MaxWait < 0:
		return fmt.Errorf("webhook: Config.MaxWait is %v, want at least 0", c.MaxWait)
	case invalid != nil:
		return fmt.Errorf("webhook: Config.Tenant, Group or Sender (as handler): %w", invalid)
	case p.Window < 2*tolerance:
		return fmt.Errorf("webhook: guard has a policy with Window %v: "+
			"a request could be proven and forgotten, want at least %v", p.Window, 2*tolerance)
	case p.ExpiredLease == oncemill.Park:
		return errors.New(`webhook: guard has a policy with ExpiredLease "park": ` +
			`an event would be lost where it can be published again under its ID`)
	case p.StoreDown == oncemill.FailOpen:
		return errors.New(`webhook: guard has a policy with StoreDown "open": each retry could be enqueued`)
	case p.Shadow:
		return errors.New("webhook: guard has a policy with Shadow: each retry would be enqueued")
	}
	return nil
}
