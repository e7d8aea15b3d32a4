package idempotencykey

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// Config configures a Middleware. Account must be set; everything else has a default.
type Config struct {
	// Account names the account that a request acts for. Take it from authentication, never from what the client can
	// choose: accounts never see each other's responses, even with the same key. A repeat gets its response without the
	// handler. If users may not see each other's responses, make each one an account here. An error or an empty name is
	// answered with 403. SingleTenant is for services with one account.
	Account func(*http.Request) (string, error)

	// Group is the API that the keys belong to, as in dedupstore.Key: 1 to 128 bytes. Renaming it forgets all keys.
	// Services that share a store need different groups, unless their routes contain the host. Empty: "http".
	Group string

	// Route names the route of a request, one of few. Records are kept under it: after a change of name they are not
	// found, and every repeat runs again. Nil: http.Request.Pattern, which a ServeMux sets, so wrap the handlers inside
	// it. A new pattern, or a new name for a wildcard, is a new name then: return a fixed name if patterns may change.
	// A request without a route is answered with 500.
	Route func(*http.Request) string

	// Required says which requests must have a key. It must not read the body. The others run under a key made for the
	// request, so that a handler always has its Run and, with an inbox, its transaction. Nil: POST and PATCH. Optional:
	// none.
	Required func(*http.Request) bool

	// MaxRequestBody is the longest request body, in bytes. It is read before the handler runs. A longer one is
	// answered with 413. Zero: 1 MiB.
	MaxRequestBody int64

	// Release says which responses give their key back, instead of being kept for repeats: the next request with it
	// runs the handler. It is asked about each status of 400 and above. In an inbox, what the handler has written for
	// such a response is rolled back.
	//
	// A status below 500 must mean that the handler had no effect, as a 404, 401 or 429 may. Such runs are not counted.
	// Runs that end with 500 and above are: at most Policy.MaxAttempts times, then the response is kept, and a policy
	// that parks keeps it at once. Release them if the handler can be repeated, as when all effects are in an inbox's
	// transaction: see ServerErrors. Nil: every response is kept.
	Release func(status int) bool

	// MaxWait is how long a request waits for another one with its key, before a 409, or for a store that is down.
	// Zero: not at all.
	MaxWait time.Duration

	// WaitLimit bounds how many requests wait at once. Nil: no bound.
	WaitLimit *oncemill.WaitLimit

	// WriteProblem answers a request that the middleware refuses. It also writes the stored response in place of a
	// refused one (CodeRefused). Set Problem.DocsURL here to your API's page on keys. Nil: Problem.Write.
	WriteProblem func(http.ResponseWriter, *http.Request, Problem)
}

// ServerErrors is a Config.Release: it releases responses with status 500 and above, and no others.
func ServerErrors(status int) bool { return status >= http.StatusInternalServerError }

// SingleTenant is the Config.Account of a service that has one account only.
func SingleTenant(*http.Request) (string, error) { return "default", nil }

// Optional is the Config.Required of an API whose clients may leave the key out.
func Optional(*http.Request) bool { return false }

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"
)

func (c Config) withDefaults() Config {
	c.Group = cmp.Or(c.Group, "http")
	c.MaxRequestBody = cmp.Or(c.MaxRequestBody, 1<<20)
	if c.Route == nil {
		c.Route = pattern
	}
	if c.Release == nil {
		c.Release = func(int) bool { return false }
	}
	if c.Required == nil {
		c.Required = postOrPatch
	}
	if c.WriteProblem == nil {
		c.WriteProblem = func(w http.ResponseWriter, _ *http.Request, p Problem) { p.Write(w) }
	}
	return c
}

// pattern is the route that a ServeMux found, without its method.
func pattern(r *http.Request) string {
	if route, ok := strings.CutPrefix(r.Pattern, r.Method+" "); ok {
		return strings.TrimLeft(route, " \t")
	}
	return r.Pattern
}

// postOrPatch reports whether HTTP does not call the method idempotent.
func postOrPatch(r *http.Request) bool {
	return r.Method == http.MethodPost || r.Method == http.MethodPatch
}

func (c *Config) validate() error {
	probe := dedupstore.Key{Tenant: "t", Group: c.Group, Handler: "h", ID: "i"}
	switch {
	case c.Account == nil:
		return fmt.Errorf("idempotencykey: Config.Account is nil: say whose keys they are, or use SingleTenant")
	case probe.Validate() != nil:
		return fmt.Errorf("idempotencykey: Config.Group is %q, want 1 to %d bytes of UTF-8 without control characters",
			c.Group, dedupstore.MaxScopePart)
	case c.MaxRequestBody < 1:
		return fmt.Errorf("idempotencykey: Config.MaxRequestBody is %d, want at least 1", c.MaxRequestBody)
	case c.MaxWait < 0:
		return fmt.Errorf("idempotencykey: Config.MaxWait is %v, want at least 0", c.MaxWait)
	}
	return nil
}
