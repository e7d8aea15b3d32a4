package idempotencykey

import (
	"fmt"
	"net/http"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// TransportConfig configures a Transport. The zero value is ready to use.
type TransportConfig struct {
	// Header is the name of the header that carries the key. Empty: Idempotency-Key.
	Header string

	// ReplayedHeader says, when it is "true", that a response is stored at the server, so that another try would get it
	// again. Empty: Idempotent-Replayed.
	ReplayedHeader string

	// Bare sends keys that are made, or come from WithKey, without the quotes of a structured field, for servers that take
	// them for a part of the key and have seen the key without. Such keys have no spaces, quotes, commas or semicolons.
	Bare bool

	// Mint says which requests get a new key if they have none; a request without a key is sent once. Nil: POST and PATCH.
	Mint func(*http.Request) bool

	// Retry says which responses are worth another try. Nil: RetryResponse. Errors of the connection always are.
	Retry func(*http.Response) bool

	// MaxAttempts is how often a request is sent at most. Zero: 5.
	MaxAttempts int

	// MaxElapsed is how long after its beginning a request is sent once more at most. A server that wants a longer pause than
	// what is left gets none: its response is returned. Zero: 1 min.
	MaxElapsed time.Duration

	// MinPause and MaxPause bound the pause before another try, which doubles and is shortened at random by up to a half.
	// A longer Retry-After of the server counts instead. Zero: 100 ms and 5 s.
	MinPause, MaxPause time.Duration

	// MaxBody bounds the body that is kept in memory to be sent again, in bytes, if the request has no GetBody. A request with
	// a longer one is sent once. Zero: 1 MiB.
	MaxBody int64
}

func (c TransportConfig) withDefaults() TransportConfig {
	set(&c.Header, defaultHeader)
	set(&c.ReplayedHeader, defaultReplayed)
	set(&c.MaxAttempts, 5)
	set(&c.MaxElapsed, time.Minute)
	set(&c.MinPause, 100*time.Millisecond)
	set(&c.MaxPause, max(5*time.Second, c.MinPause))
	set(&c.MaxBody, defaultBody)
	if c.Mint == nil {
		c.Mint = Methods(http.MethodPost, http.MethodPatch)
	}
	if c.Retry == nil {
		c.Retry = RetryResponse
	}
	return c
}

func (c *TransportConfig) validate() error {
	bad := func(field, problem string) error {
		return &dedupstore.InvalidError{Field: "TransportConfig." + field, Problem: problem}
	}
	switch {
	case !isToken(c.Header):
		return bad("Header", fmt.Sprintf("is %q, which is no header's name", c.Header))
	case !isToken(c.ReplayedHeader):
		return bad("ReplayedHeader", fmt.Sprintf("is %q, which is no header's name", c.ReplayedHeader))
	case c.MaxAttempts < 1:
		return bad("MaxAttempts", fmt.Sprintf("is %d, want at least 1", c.MaxAttempts))
	case c.MaxElapsed < 0:
		return bad("MaxElapsed", fmt.Sprintf("is %v, want at least 0", c.MaxElapsed))
	case c.MinPause < 0:
		return bad("MinPause", fmt.Sprintf("is %v, want at least 0", c.MinPause))
	case c.MaxPause < c.MinPause:
		return bad("MaxPause", fmt.Sprintf("is %v, want at least TransportConfig.MinPause (%v)", c.MaxPause, c.MinPause))
	case c.MaxBody < 0:
		return bad("MaxBody", fmt.Sprintf("is %d, want at least 0", c.MaxBody))
	}
	return nil
}

// RetryResponse is the default of TransportConfig.Retry: 429, 500 and above but 501 and 505, and 409 with a Retry-After, by
// which servers say that a request with the key is in progress.
func RetryResponse(r *http.Response) bool {
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
