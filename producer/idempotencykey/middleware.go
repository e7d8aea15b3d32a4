package idempotencykey

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/requests"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A Middleware runs handlers once for each key, and repeats the response. It is safe for concurrent use.
type Middleware struct {
	guard  *oncemill.Guard
	config Config
	most   int           // bytes of a stored response
	log    *slog.Logger  // never gets anything of a body or a header
	inbox  bool          // responses are held until a commit
	linger time.Duration // how long a run goes on after its client has gone
	server *telemetry.Server

	strange, read, routeless pace.Limiter // of lines about each request
}

// New returns a middleware over a guard. The error names the field of the config that is wrong. Responses are kept for
// Policy.Window, or Policy.FailureWindow from status 500 on: say that in your API's documentation.
func New(guard *oncemill.Guard, c Config) (*Middleware, error) {
	if guard == nil {
		return nil, errors.New("idempotencykey: guard is nil")
	}
	policy := guard.Policy()
	if err := requests.CheckPolicy(policy); err != nil {
		return nil, fmt.Errorf("idempotencykey: %w", err)
	}
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	server, err := telemetry.NewServer(telemetry.Providers(policy.Telemetry))
	if err != nil {
		return nil, fmt.Errorf("idempotencykey: make instruments: %w", err)
	}
	return &Middleware{
		guard: guard, config: c, most: policy.MaxResultBytes, log: policy.Logger, inbox: guard.Transacts(),
		linger: requests.Linger, server: server,
	}, nil
}

// Wrap returns a handler that runs next once for each key, for all methods but GET, HEAD, OPTIONS, TRACE and CONNECT.
// Put it inside of authentication, rate limits and panic recovery, and around everything that must be repeated or
// rolled back with the handler. Nothing around it may read the body or the form. Nothing in next may go on after next
// has returned, so it cannot be an http.TimeoutHandler. A nil handler panics at once.
//
// The handler returns when the run is over. http.Server.Shutdown does not always wait for that: see docs/http.md.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if isnil.Nil(next) {
		panic("idempotencykey: Wrap needs a handler: next is nil")
	}
	return m.wrap(next, func(w http.ResponseWriter, r *http.Request) error {
		next.ServeHTTP(w, r)
		return nil
	})
}

// WrapFunc is Wrap for a handler that returns an error. The error says what becomes of the key as it does in any run of
// the guard. Most errors count an attempt, and the client's repeat runs the handler again, after the policy's backoff,
// at most Policy.MaxAttempts times. oncemill.Permanent makes the failure the outcome, which every repeat gets.
// RetryAfter, Uncounted and NoEffect mean what they say. In an inbox the transaction is rolled back; if the error holds
// the database's, and that says that others are the reason, such as a deadlock, the handler is called again at once.
//
// The client gets what the handler has written, if that is a status of 400 or above. Otherwise it gets a 500
// (CodeFailed), in place of what was written.
//
// The text of the error is logged and stored as the reason: leave personal data out of it. An error of a request that
// passes through, such as a GET, is answered with a 500 unless the handler has written something.
func (m *Middleware) WrapFunc(next func(http.ResponseWriter, *http.Request) error) http.Handler {
	if next == nil {
		panic("idempotencykey: WrapFunc needs a handler: next is nil")
	}
	return m.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		noted := &notedWriter{ResponseWriter: w}
		err := next(noted, r)
		if err == nil {
			return
		}
		m.log.WarnContext(r.Context(), "idempotencykey: the handler failed", "error", err)
		if !noted.written {
			m.refuse(w, r, newProblem(CodeFailed, ""))
		}
	}), next)
}

// notedWriter knows whether something was written.
type notedWriter struct {
	http.ResponseWriter
	written bool
}

// WriteHeader implements http.ResponseWriter.
func (n *notedWriter) WriteHeader(status int) {
	n.written = n.written || status >= 200
	n.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (n *notedWriter) Write(p []byte) (int, error) {
	n.written = true
	return n.ResponseWriter.Write(p)
}

// Unwrap is what http.ResponseController calls.
func (n *notedWriter) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// wrap returns a handler for requests without effect, and for those that are run once.
func (m *Middleware) wrap(without http.Handler, next handlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if safe(r.Method) {
			without.ServeHTTP(w, r)
			return
		}
		x := &exchange{m: m, next: next}
		var end func()
		x.w, x.r, end = m.server.Begin(w, r)
		defer end()
		defer func() { // the server removes those of its own request only
			if f := x.r.MultipartForm; f != nil && f != r.MultipartForm {
				f.RemoveAll() //nolint:errcheck // files in a temporary folder
			}
		}()
		if problem := x.prepare(w); problem != nil {
			m.refuse(x.w, x.r, problem)
			return
		}
		x.run()
	})
}

type handlerFunc = func(http.ResponseWriter, *http.Request) error

// Fail says that the run of a request has failed with an error: it does for a handler of Wrap, which must return after
// it, what returning the error does for one of WrapFunc. Of several errors the first counts. Nil does nothing. So does
// a request that is in no run, such as a GET.
func Fail(r *http.Request, err error) {
	if failed, in := r.Context().Value(failedKey{}).(*atomic.Pointer[handlerError]); in && err != nil {
		failed.CompareAndSwap(nil, &handlerError{err})
	}
}

// failedKey is the key of a context's value: where Fail puts its error.
type failedKey struct{}

// safe reports whether a method has no effect that could be repeated (RFC 9110, section 9.2.1), or makes a tunnel.
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect, "":
		return true
	}
	return false
}

// sayEvery is how often the log says what each request may meet.
const sayEvery = time.Minute

// prepare finds the key of a request, and reads its body. A problem means that nothing has begun. The writer is the
// server's own.
func (x *exchange) prepare(w http.ResponseWriter) *Problem {
	c, r := &x.m.config, x.r
	id, wrong := requests.Key(r.Header.Values(keyHeader))
	x.made = id == ""
	switch {
	case wrong != "":
		return newProblem(CodeInvalid, keyHeader+" "+wrong+".")
	case x.made && c.Required(r):
		return newProblem(CodeMissing, "")
	case x.made:
		id = ids.New()
	}
	if problem := x.readBody(w); problem != nil {
		return problem
	}
	// The handler would find the values of a form that was read before, but the fingerprint would not.
	if len(x.body) == 0 && !x.made && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil) {
		if x.m.read.Due(sayEvery) {
			x.m.log.ErrorContext(r.Context(), "idempotencykey: the body of a request was read before the middleware "+
				"got it: let neither an outer middleware nor Config.Required read it; there may be more")
		}
		return newProblem(CodeInternal, "")
	}
	r.Body = x.reader()
	account, err := c.Account(r)
	if err != nil || account == "" {
		if x.m.strange.Due(sayEvery) { // anybody can cause it, as often as they like
			x.m.log.WarnContext(r.Context(), "idempotencykey: no account for a request; there may be more",
				"error", err)
		}
		return newProblem(CodeNoAccount, "")
	}
	route := c.Route(r)
	if route == "" {
		if x.m.routeless.Due(sayEvery) {
			x.m.log.ErrorContext(r.Context(), "idempotencykey: a request has no route: records are kept under it; "+
				"wrap the handlers in a http.ServeMux, or set Config.Route; there may be more")
		}
		return newProblem(CodeInternal, "")
	}
	x.call = oncemill.Call{
		Key: c.key(account, r.Method, route, id), Fingerprint: fingerprint(r, route, x.body),
		MaxWait: c.MaxWait, WaitLimit: c.WaitLimit,
	}
	return nil
}

// readBody reads the body of a request. A client that says how much it sends is refused before it sends it. Beyond the
// limit http.MaxBytesReader has the server's own writer end the connection.
func (x *exchange) readBody(w http.ResponseWriter) (problem *Problem) {
	limit := x.m.config.MaxRequestBody
	tooLarge := func() *Problem {
		return newProblem(CodeTooLarge, fmt.Sprintf("The body has at most %d bytes.", limit))
	}
	switch {
	case x.r.ContentLength > limit:
		w.Header().Set("Connection", "close") // the rest is not read
		return tooLarge()
	case x.r.Body == nil:
		return nil
	}
	var err error
	x.body, err = io.ReadAll(http.MaxBytesReader(w, x.r.Body, limit))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return tooLarge()
	}
	if err != nil {
		return newProblem(CodeInvalid, "The body of the request ended early.")
	}
	return nil
}

// reader returns the body from its beginning.
func (x *exchange) reader() io.ReadCloser {
	if len(x.body) == 0 {
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(x.body))
}
