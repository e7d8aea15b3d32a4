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

	// ServerErrors says what becomes of a response with status 500 and above. Zero: StoreServerErrors.
	ServerErrors ServerErrors

	// MaxWait is how long a request waits for another one with its key, before a 409, or for a store that is down.
	// Zero: not at all.
	MaxWait time.Duration

	// WaitLimit bounds how many requests wait at once. Nil: no bound.
	WaitLimit *oncemill.WaitLimit

	// WriteProblem answers a request that the middleware refuses. It also writes the stored response in place of a
	// refused one (CodeRefused). Set Problem.DocsURL here to your API's page on keys. Nil: Problem.Write.
	WriteProblem func(http.ResponseWriter, *http.Request, Problem)
}

// ServerErrors says what becomes of a response with status 500 and above.
type ServerErrors string

// What becomes of a server error.
const (
	// StoreServerErrors gives it to every repeat, for Policy.FailureWindow, because the handler may have had an effect.
	StoreServerErrors ServerErrors = "store"

	// ReleaseServerErrors lets the next repeat run the handler again, at most Policy.MaxAttempts times; the last
	// response is stored. It is for handlers that can be repeated, such as those with effects only in an inbox's
	// transaction, which is rolled back. A policy that parks stores the response all the same.
	ReleaseServerErrors ServerErrors = "release"
)

// SingleTenant is the Config.Account of a service that has one account only.
func SingleTenant(*http.Request) (string, error) { return "default", nil }

// Optional is the Config.Required of an API whose clients may leave the key out.
func Optional(*http.Request) bool { return false }

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"
	maxKey         = 255              // characters, as Stripe has it
	leastResult    = 1 << 10          // bytes of a stored response: a problem at least
	linger         = 30 * time.Second // how long a run goes on after its client has gone
)

func (c Config) withDefaults() Config {
	c.Group = cmp.Or(c.Group, "http")
	c.MaxRequestBody = cmp.Or(c.MaxRequestBody, 1<<20)
	c.ServerErrors = cmp.Or(c.ServerErrors, StoreServerErrors)
	if c.Route == nil {
		c.Route = pattern
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
	case c.ServerErrors != StoreServerErrors && c.ServerErrors != ReleaseServerErrors:
		return fmt.Errorf("idempotencykey: Config.ServerErrors is %q, want %q or %q",
			c.ServerErrors, StoreServerErrors, ReleaseServerErrors)
	case c.MaxRequestBody < 1:
		return fmt.Errorf("idempotencykey: Config.MaxRequestBody is %d, want at least 1", c.MaxRequestBody)
	case c.MaxWait < 0:
		return fmt.Errorf("idempotencykey: Config.MaxWait is %v, want at least 0", c.MaxWait)
	}
	return nil
}
