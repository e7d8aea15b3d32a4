package idempotencykey

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
)

// Config configures a Middleware. Account must be set; everything else has a default.
type Config struct {
	// Account names the account that a request acts for, from what authentication has found out, never from what the client
	// can choose freely: two accounts may use the same key and never see each other's responses. A repeat gets its response
	// without the handler: users of whom one may not see what another may are accounts of their own here. An error
	// or an empty name is answered with 403. SingleTenant is for services that have one account only.
	Account func(*http.Request) (string, error)

	// Group is the API that the keys belong to, as the dedupstore.Key has it: 1 to 128 bytes. Renaming it forgets all keys.
	// The host that a request names is no part of a key, nor of what a repeat must have the same, since an API may have
	// several names: services that share a store need different groups, unless their routes have the host. Empty: "http".
	Group string

	// Route names the route of a request, one of few. Nil: http.Request.Pattern, which a ServeMux sets, so that the
	// middleware has to be wrapped around the handlers in it. Another text forgets the route's keys, also if only a wildcard in
	// the pattern has another name: give a fixed one where routes may be renamed. Requests without a route are answered with
	// 500: keys would not be scoped by it.
	Route func(*http.Request) string

	// Supports says of which requests keys are honoured, without reading the body. GET, HEAD, OPTIONS, TRACE and CONNECT never
	// are. Nil: POST and PATCH.
	Supports func(*http.Request) bool

	// Required says which of them must have a key, without reading the body; others than those are run under a key that is
	// made for the request alone, so that a handler always has its Run and, with an inbox, its transaction. Nil: all.
	// Optional: none.
	Required func(*http.Request) bool

	// Unsupported says what to do with a key on a request that is not supported. Zero: IgnoreKey.
	Unsupported Unsupported

	// Headers are the names of the header that carries the key. A request may have one of them, once. Empty: Idempotency-Key.
	Headers []string

	// ReplayedHeader is set to "true" on every response that another request produced. Empty: Idempotent-Replayed.
	ReplayedHeader string

	// MinKeyLength and MaxKeyLength bound the key, in characters. At most 512. Zero: 1 and 255.
	MinKeyLength, MaxKeyLength int

	// CheckKey refuses keys that have not the format that the API has published, such as UUIDs. The error's text goes to
	// the client; it should not repeat the key. Nil: all are accepted.
	CheckKey func(key string) error

	// FingerprintHeaders are request headers that a repeat must have with the same values, besides method, route, path and
	// query, as the client sent them and as the handler sees them, and body, which always count. What was asked
	// for under a key before this list was changed is not compared at all. Host cannot be one of them: see Group. Empty: none.
	FingerprintHeaders []string

	// StoreHeaders are the response headers that a replay has. Naming a header that carries credentials, such as
	// Set-Cookie, stores it. Nil: StoredHeaders.
	StoreHeaders []string

	// MaxRequestBody bounds the body of a request, in bytes, which is read before the handler runs. A longer one is
	// answered with 413. Zero: 1 MiB.
	MaxRequestBody int64

	// MaxResponseBody bounds the body of a response that is kept, in bytes. What becomes of a longer one says the package's
	// doc. At least 1 KiB less than Policy.MaxResultBytes, which headers need. Zero: three quarters of Policy.MaxResultBytes.
	MaxResponseBody int

	// ServerErrors says what becomes of a response with status 500 and above. Zero: StoreServerErrors.
	ServerErrors ServerErrors

	// MaxWait is how long a request waits for another one with its key before it is answered with 409, and for a store that
	// does not answer. Zero: not at all.
	MaxWait time.Duration

	// WaitLimit bounds how many requests wait at once. Nil: no bound.
	WaitLimit *oncemill.WaitLimit

	// Linger is how long a run goes on after its client has gone: an effect may be under way, and the response is kept for
	// the client's retry. Then the handler's context is cancelled with cause ErrClientGone. A deadline that something around
	// the middleware sets counts as the client's going: the handler's context does not have it. A handler that returns after the
	// end of its context and has said nothing, not even a status, has given up: with an inbox its writes are rolled back, and
	// the next repeat runs it again; under a policy that parks, the outcome is unknown. One that has flushed has no response
	// that can be kept, unless its Content-Length is reached. Its writes have no error because of a client that has gone before
	// the end of its context. Negative: at once. Zero: 30 s.
	Linger time.Duration

	// DocsURL is where the API describes its use of keys; problems have it as their type, with the code as fragment, and as
	// a Link. Empty: the docs of Oncemill.
	DocsURL string

	// WriteProblem answers a request that the middleware refuses. It also writes what takes the place of a response that is
	// refused (CodeRefused), which is stored. Nil: Problem.Write.
	WriteProblem func(http.ResponseWriter, *http.Request, Problem)

	// Logger gets what operators must know; never anything of a body or a header. Nil: the guard's.
	Logger *slog.Logger
}

// Unsupported says what to do with a key on a request that does not support it.
type Unsupported string

// What to do with a key that is not supported.
const (
	IgnoreKey Unsupported = "ignore" // run the handler without a guard
	RefuseKey Unsupported = "refuse" // answer 400, so that no client believes itself safe; also a GET that took its header along over a redirect
)

// ServerErrors says what becomes of a response with status 500 and above.
type ServerErrors string

// What becomes of a server error.
const (
	// StoreServerErrors gives it to every repeat, for Policy.FailureWindow: the handler had begun, and may have had an effect.
	StoreServerErrors ServerErrors = "store"

	// ReleaseServerErrors lets the next repeat run the handler again, at most Policy.MaxAttempts times; the last response is
	// stored then. For handlers that can be repeated, such as those that have no effect but in an inbox's transaction, of
	// which nothing remains. Under a policy that parks, the response is stored all the same.
	ReleaseServerErrors ServerErrors = "release"
)

// SingleTenant is the Config.Account of a service that has one account only.
func SingleTenant(*http.Request) (string, error) { return "default", nil }

// Optional is the Config.Required of an API whose clients may leave the key out.
func Optional(*http.Request) bool { return false }

// Methods returns a Config.Supports for requests with one of these methods, as they are named here or in upper case: a browser's
// fetch sends "patch" as it is.
func Methods(names ...string) func(*http.Request) bool {
	supported := make(map[string]bool, len(names))
	for _, name := range names {
		supported[name], supported[strings.ToUpper(name)] = true, true
	}
	return func(r *http.Request) bool { return supported[r.Method] }
}

// StoredHeaders returns the response headers that are stored by default, in a slice of the caller's own.
func StoredHeaders() []string {
	return []string{
		"Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Content-Disposition", "X-Content-Type-Options", "Location", "Etag",
		"Last-Modified", "Link", "Retry-After",
	}
}
