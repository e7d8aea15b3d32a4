package idempotencykey

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
)

// A Transport is a http.RoundTripper that gives requests a key and sends them again with the same one, and the same body,
// until there is a response that counts. It is safe for concurrent use.
//
// Use it only for servers that honour the key: to others a request that is sent again is another request, and its effect
// happens twice. TransportConfig.Mint and a client of its own for each API keep it to those.
//
// The key of a request is, in this order: the one in its header, which is left as it is; that of WithKey; a new one. A new
// one lives for one call of RoundTrip: whoever repeats requests outside, or after a restart, stores a key first and uses
// WithKey. http.Client calls RoundTrip once more for each redirect.
type Transport struct {
	base   http.RoundTripper
	config TransportConfig
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport over another one, or over http.DefaultTransport if that is nil. The error names the field
// that is wrong. A server that hangs is for the base to give up (http.Transport.ResponseHeaderTimeout): then it is tried
// again.
func NewTransport(base http.RoundTripper, c TransportConfig) (*Transport, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if base == nil {
		base = http.DefaultTransport
	}
	return &Transport{base, c}, nil
}

type contextKey struct{}

// WithKey returns a context whose requests carry a key, but for those of methods without effect, such as GET. It is for one
// request and its repeats: another request with the same key is refused by the server, or, at another route, taken for another
// action.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// RoundTrip implements http.RoundTripper. What it returns in the end is the last response, or the last error. A key that no
// header can carry, a header that is empty, but for methods without effect, or one that is there twice is a
// *dedupstore.InvalidError, and nothing is sent. A response whose body breaks off has been returned by then: it is for the
// caller to repeat the request, which needs WithKey.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	header, err := t.key(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	if header == "" {
		return t.base.RoundTrip(r)
	}
	body, again, err := t.body(r)
	if err != nil {
		return nil, err
	}
	limit := t.config.MaxAttempts
	if !again {
		limit = 1
	}
	return t.send(r, header, body, limit)
}

// key returns the value of the header, and "" for a request that is to have none.
func (t *Transport) key(r *http.Request) (string, error) {
	switch values := r.Header.Values(t.config.Header); {
	case len(values) > 1:
		return "", &dedupstore.InvalidError{Field: "header " + t.config.Header, Problem: "is there more than once"}
	case len(values) == 1 && strings.Trim(values[0], " \t") == "" && safe(r.Method):
		return "", nil // a program may set the header of all its requests
	case len(values) == 1 && strings.Trim(values[0], " \t") == "":
		return "", &dedupstore.InvalidError{Field: "header " + t.config.Header, Problem: "is empty"}
	case len(values) == 1:
		return values[0], nil
	}
	key, given := r.Context().Value(contextKey{}).(string)
	if safe(r.Method) { // such as that of a page which the response to a POST redirects to
		given = false
	}
	if !given {
		if !t.config.Mint(r) {
			return "", nil
		}
		key = ids.New()
	}
	problem := ""
	switch {
	case key == "":
		problem = "is empty"
	case t.config.Bare:
		problem = bareProblem(key)
	case !printable(key):
		problem = "has a character that is not printable ASCII"
	}
	if problem != "" {
		return "", &dedupstore.InvalidError{Field: "key", Problem: problem}
	}
	if t.config.Bare {
		return key, nil
	}
	return quoteKey(key), nil
}

// send sends the request until there is something to return.
func (t *Transport) send(r *http.Request, header string, body func() (io.ReadCloser, error), limit int) (*http.Response, error) {
	start := time.Now()
	for attempt := 1; ; attempt++ {
		out := r.Clone(r.Context())
		if out.Header == nil {
			out.Header = http.Header{}
		}
		out.Header.Set(t.config.Header, header)
		var err error
		if out.Body, err = body(); err != nil {
			return nil, fmt.Errorf("idempotencykey: read the body once more: %w", err)
		}
		resp, err := t.base.RoundTrip(out)
		if attempt >= limit || r.Context().Err() != nil || err == nil && !t.retry(resp) {
			return resp, err
		}
		pause := t.pause(attempt, resp)
		if time.Since(start)+pause > t.config.MaxElapsed {
			return resp, err
		}
		if resp != nil {
			drain(r.Context(), resp.Body)
		}
		if !sleep(r.Context(), pause) {
			return nil, context.Cause(r.Context())
		}
	}
}

func (t *Transport) retry(resp *http.Response) bool {
	return resp.Header.Get(t.config.ReplayedHeader) != "true" && t.config.Retry(resp)
}

// pause is how long to wait after an attempt, counted from 1.
func (t *Transport) pause(attempt int, resp *http.Response) time.Duration {
	d := pace.Backoff(t.config.MinPause, t.config.MaxPause, attempt)
	d -= rand.N(d/2 + 1)
	if resp != nil {
		d = max(d, retryAfter(resp.Header.Get("Retry-After")))
	}
	return d
}

// retryAfter reads the header (RFC 9110, section 10.2.3). Zero: there is none that can be understood.
func retryAfter(value string) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return time.Until(at)
	}
	return 0
}

// sleep waits, and reports false if the context ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
