package idempotencykey

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// A Middleware gives handlers one run a key, and repeats its response. It is safe for concurrent use.
type Middleware struct {
	guard  *oncemill.Guard
	config Config
	policy oncemill.Policy
	scheme string
	inbox  bool // responses are held until a commit
}

// New returns a middleware over a guard. The error names the field of the config that is wrong. How long responses are kept
// is Policy.Window and, for those with status 500 and above, Policy.FailureWindow: say it in the API's documentation.
func New(guard *oncemill.Guard, c Config) (*Middleware, error) {
	if guard == nil {
		return nil, &dedupstore.InvalidError{Field: "guard", Problem: "is nil"}
	}
	policy := guard.Policy()
	if policy.Mismatch == oncemill.MismatchIgnore {
		return nil, &dedupstore.InvalidError{Field: "guard", Problem: `has a policy with Mismatch "ignore": another request under a key would get its response, also one of another path`}
	}
	c = c.withDefaults(policy)
	if err := c.validate(policy); err != nil {
		return nil, err
	}
	return &Middleware{guard: guard, config: c, policy: policy, scheme: c.fingerprintScheme(), inbox: guard.Transacts()}, nil
}

// Wrap returns a handler that runs next once a key. Put it inside of what authenticates, limits rates and recovers from
// panics, and outside of what must be repeated or rolled back together with the handler. Nothing around it may read the
// body, also as a form. Nothing in next may go on once that has returned, as http.TimeoutHandler lets its handler.
//
// The handler returns when the run is over. http.Server.Shutdown does not always wait for that: see docs/http.md.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := &m.config
	if safe(r.Method) || !c.Supports(r) {
		if c.Unsupported == RefuseKey && c.hasKey(r.Header) {
			m.refuse(w, r, unsupported())
			return
		}
		next.ServeHTTP(w, r)
		return
	}
	x, problem := m.exchange(w, r)
	if problem != nil {
		m.refuse(w, r, problem)
		return
	}
	x.next = next
	m.run(x)
}

// safe reports whether a method has no effect that could be repeated (RFC 9110, section 9.2.1), or makes a tunnel.
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect, "":
		return true
	}
	return false
}

func (c *Config) hasKey(h http.Header) bool {
	for _, name := range c.Headers {
		if len(h.Values(name)) > 0 {
			return true
		}
	}
	return false
}

// exchange finds out what a request is, and reads its body. A problem means that nothing has begun.
func (m *Middleware) exchange(w http.ResponseWriter, r *http.Request) (*exchange, *Problem) {
	c := &m.config
	id, err := c.clientKey(r.Header)
	made := id == ""
	switch {
	case err != nil:
		return nil, invalidKey(err)
	case made && c.Required(r):
		return nil, missing(c.Headers[0])
	case made:
		id = ids.New()
	}
	body, problem := m.body(w, r)
	if problem != nil {
		return nil, problem
	}
	if len(body) == 0 && hadBody(r) && !made {
		c.Logger.ErrorContext(r.Context(), "idempotencykey: the body of a request was read before: let nothing do so that stands around the middleware, nor Config.Supports or Config.Required")
		return nil, misconfigured()
	}
	x := &exchange{m: m, w: w, r: r, body: body}
	reader := newReader(body)
	r.Body = reader
	account, err := c.Account(r)
	if err != nil || account == "" {
		c.Logger.WarnContext(r.Context(), "idempotencykey: no account for a request", "error", err)
		return nil, noAccount()
	}
	reader.Reset(body) // the function before may have read it
	r.Body = reader
	route := c.Route(r)
	if route == "" {
		c.Logger.ErrorContext(r.Context(), "idempotencykey: a request has no route: wrap the handlers in a http.ServeMux, or set Config.Route")
		return nil, misconfigured()
	}
	x.call = oncemill.Call{
		Key: c.key(account, r.Method, route, id), Fingerprint: m.fingerprint(r, route, body), MaxWait: c.MaxWait, WaitLimit: c.WaitLimit,
	}
	return x, nil
}

// body reads the body of a request. A client that says how much it sends is refused before it sends it.
func (m *Middleware) body(w http.ResponseWriter, r *http.Request) ([]byte, *Problem) {
	limit := m.config.MaxRequestBody
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not read
		return nil, tooLarge(limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(min(r.ContentLength, 16<<10)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return nil, tooLarge(limit)
	}
	if err != nil {
		return nil, unreadable()
	}
	return b.Bytes(), nil
}

// hadBody reports whether somebody has read the body of a request already, such as by Request.FormValue. The handler would
// find the form, and the fingerprint nothing of it.
func hadBody(r *http.Request) bool {
	return r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil
}

// A reader is a body that has been read before.
type reader struct{ bytes.Reader }

func newReader(body []byte) *reader {
	r := &reader{}
	r.Reset(body)
	return r
}

// Close implements io.Closer.
func (*reader) Close() error { return nil }

// reader returns the body from its beginning.
func (x *exchange) reader() io.ReadCloser {
	if len(x.body) == 0 {
		return http.NoBody
	}
	return newReader(x.body)
}

func (m *Middleware) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.DocsURL = m.config.DocsURL
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds(p.RetryAfter), 10))
	}
	if p.Replayed != "" {
		w.Header().Set(p.Replayed, "true")
	}
	m.config.WriteProblem(w, r, *p)
}
