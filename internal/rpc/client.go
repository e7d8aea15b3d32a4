package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/requests"
)

// A Client sends calls again with one key. It is safe for concurrent use.
type Client struct {
	MaxAttempts int           // zero: 5
	MaxElapsed  time.Duration // zero: 1 min
}

// NewClient fills in the defaults.
func NewClient(c Client) (Client, error) {
	c = Client{cmp.Or(c.MaxAttempts, 5), cmp.Or(c.MaxElapsed, time.Minute)}
	switch {
	case c.MaxAttempts < 1:
		return c, fmt.Errorf("ClientConfig.MaxAttempts is %d, want at least 1", c.MaxAttempts)
	case c.MaxElapsed < 0:
		return c, fmt.Errorf("ClientConfig.MaxElapsed is %v, want at least 0", c.MaxElapsed)
	}
	return c, nil
}

type contextKey struct{}

// WithKey returns a context whose calls carry a key.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// Key returns the metadata's value for a call that has none: that of the context's key, or a new one.
func Key(ctx context.Context) (string, error) {
	key, given := ctx.Value(contextKey{}).(string)
	switch {
	case !given:
		key = ids.New()
	case key == "" || !requests.Printable(key):
		return "", errors.New("key is empty, or has a character that is not printable ASCII")
	}
	return requests.QuoteKey(key), nil
}

// A Try is how a call went that was sent once.
type Try struct {
	Status   *Status // nil: OK
	Replayed bool    // it is a stored response
	Lost     bool    // the status is the client's own, as that of a lost connection
}

// Send sends a call until its answer counts.
func (c Client) Send(ctx context.Context, send func() Try) {
	start := time.Now()
	for attempt := 1; attempt <= c.MaxAttempts; attempt++ {
		try := send()
		pause := pauseAfter(attempt, try.Status)
		ends, limited := ctx.Deadline()
		if attempt == c.MaxAttempts || ctx.Err() != nil || !try.again() || pause > c.MaxElapsed-time.Since(start) ||
			limited && time.Until(ends) < pause || !pace.Sleep(ctx, pause) {
			return
		}
	}
}

// again reports whether another try may be answered otherwise. Each server error is worth one, as over HTTP: the server
// says whether it is the stored response.
func (t Try) again() bool {
	if t.Status == nil || t.Replayed {
		return false
	}
	switch t.Status.Code {
	case unavailable, resourceExhausted, unknown, internal, dataLoss, deadlineExceeded:
		return true
	case aborted: // of the server's guard, not of a handler
		_, said := t.Status.retryAfter()
		return said
	}
	return t.Lost && t.Status.Code != unimplemented
}

// pauseAfter is how long to wait after an attempt, counted from 1.
func pauseAfter(attempt int, s *Status) time.Duration {
	d := pace.Backoff(100*time.Millisecond, 5*time.Second, attempt)
	d -= rand.N(d/2 + 1)
	if s != nil {
		if after, said := s.retryAfter(); said {
			d = max(d, after)
		}
	}
	return d
}
