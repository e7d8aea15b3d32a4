package idempotencykey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/requests"
)

// TransportConfig configures a Transport. The zero value is ready to use.
type TransportConfig struct {
	// Header is the name of the header that carries the key. Empty: Idempotency-Key.
	Header string

	// Mint says which requests without a key get a new one. A request without a key is sent once. Nil: POST and PATCH.
	Mint func(*http.Request) bool

	// Retry says which responses are worth another try. Nil: RetryResponse. Errors of the connection always are.
	Retry func(*http.Response) bool

	// MaxAttempts is how often a request is sent at most. Zero: 5.
	MaxAttempts int

	// MaxElapsed is the latest time, from the beginning, at which a request is sent once more. If the server wants a
	// longer pause than what is left of it, or until the context's deadline, its response is returned. Zero: 1 min.
	MaxElapsed time.Duration
}

// A Transport is an http.RoundTripper that gives requests a key, and repeats them with the same key and body until a
// response counts. It is safe for concurrent use.
//
// Use it only for servers that honour the key. At others a repeat is another request, and its effect happens twice. Use
// one client for each API, or choose requests by TransportConfig.Mint.
//
// The key of a request is the one in its header, which is left as it is, or that of WithKey, or a new one. A new key
// lives for one call of RoundTrip. If you repeat requests outside of it, or after a restart, store a key first and use
// WithKey. http.Client calls RoundTrip once more for each redirect.
//
// Pauses double from 100 ms to 5 s, less up to a half at random. A longer Retry-After of the server counts instead. A
// request whose body cannot be read twice (no Request.GetBody) is sent once.
type Transport struct {
	base   http.RoundTripper
	config TransportConfig
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport over base, or over http.DefaultTransport if that is nil. The error names the field
// that is wrong. For servers that hang, set a timeout of the base (http.Transport.ResponseHeaderTimeout): the request
// is then repeated.
func NewTransport(base http.RoundTripper, c TransportConfig) (*Transport, error) {
	c.Header = cmp.Or(c.Header, keyHeader)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.MaxElapsed = cmp.Or(c.MaxElapsed, time.Minute)
	if c.Mint == nil {
		c.Mint = postOrPatch
	}
	if c.Retry == nil {
		c.Retry = RetryResponse
	}
	switch {
	case requests.BareProblem(c.Header) != "":
		return nil, fmt.Errorf("idempotencykey: TransportConfig.Header is %q, which is no header's name", c.Header)
	case c.MaxAttempts < 1:
		return nil, fmt.Errorf("idempotencykey: TransportConfig.MaxAttempts is %d, want at least 1", c.MaxAttempts)
	case c.MaxElapsed < 0:
		return nil, fmt.Errorf("idempotencykey: TransportConfig.MaxElapsed is %v, want at least 0", c.MaxElapsed)
	}
	if base == nil {
		base = http.DefaultTransport
	}
	return &Transport{base, c}, nil
}

// RetryResponse is the default of TransportConfig.Retry. It repeats after 429, and after 500 and above except 501 and
// 505. It also repeats after 409 with a Retry-After, which means that a request with the key is in progress. It does
// not repeat after Idempotent-Replayed: true, because the server would send the stored response again.
func RetryResponse(r *http.Response) bool {
	if r.Header.Get(replayedHeader) == "true" {
		return false
	}
	switch r.StatusCode {
	case http.StatusConflict:
		return r.Header.Get("Retry-After") != ""
	case http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return r.StatusCode >= http.StatusInternalServerError
}

type contextKey struct{}

// WithKey returns a context whose requests carry a key, except those without effect, such as GET. It is for one request
// and its repeats. The server refuses another request with the same key, or, at another route, takes it for another
// action.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// RoundTrip implements http.RoundTripper. It returns the last response or the last error. It returns an error and sends
// nothing if no header can carry the key, or if the header is there twice. The same goes for an empty header, except on
// methods without effect. If the body of a returned response breaks off, repeat the request yourself, with WithKey.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	header, err := t.key(r)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	if header == "" {
		return t.base.RoundTrip(r)
	}
	limit := t.config.MaxAttempts
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		limit = 1
	}
	start := time.Now()
	for attempt := 1; ; attempt++ {
		out := r.Clone(r.Context())
		if out.Header == nil {
			out.Header = http.Header{}
		}
		out.Header.Set(t.config.Header, header)
		if attempt > 1 && r.GetBody != nil {
			if out.Body, err = r.GetBody(); err != nil {
				return nil, fmt.Errorf("idempotencykey: read the body once more: %w", err)
			}
		}
		resp, err := t.base.RoundTrip(out)
		pause := pauseAfter(attempt, resp)
		ends, limited := r.Context().Deadline()
		if attempt == limit || r.Context().Err() != nil || err == nil && !t.config.Retry(resp) ||
			pause > t.config.MaxElapsed-time.Since(start) || limited && pause > time.Until(ends) {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		if !pace.Sleep(r.Context(), pause) {
			return nil, context.Cause(r.Context())
		}
	}
}

// key returns the value of the header, and "" for a request that gets none.
func (t *Transport) key(r *http.Request) (string, error) {
	name := t.config.Header
	if values := r.Header.Values(name); len(values) > 0 {
		switch {
		case len(values) > 1:
			return "", errors.New("idempotencykey: header " + name + " is there more than once")
		case strings.Trim(values[0], " \t") != "":
			return values[0], nil
		case safe(r.Method): // a program may set the header of all its requests
			return "", nil
		}
		return "", errors.New("idempotencykey: header " + name + " is empty")
	}
	key, given := r.Context().Value(contextKey{}).(string)
	switch {
	case safe(r.Method): // such as that of a page which the response to a POST redirects to
		return "", nil
	case !given && !t.config.Mint(r):
		return "", nil
	case !given:
		key = ids.New()
	case key == "" || !requests.Printable(key):
		return "", errors.New("idempotencykey: key is empty, or has a character that is not printable ASCII")
	}
	return requests.QuoteKey(key), nil
}

// pauseAfter is how long to wait after an attempt, counted from 1.
func pauseAfter(attempt int, resp *http.Response) time.Duration {
	d := pace.Backoff(100*time.Millisecond, 5*time.Second, attempt)
	d -= rand.N(d/2 + 1)
	if resp == nil {
		return d
	}
	after := resp.Header.Get("Retry-After") // RFC 9110, section 10.2.3
	if n, err := strconv.ParseUint(after, 10, 31); err == nil {
		return max(d, time.Duration(n)*time.Second)
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(d, time.Until(at))
	}
	return d
}
