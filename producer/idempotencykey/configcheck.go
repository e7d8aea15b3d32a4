package idempotencykey

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

const (
	defaultHeader   = "Idempotency-Key"
	defaultReplayed = "Idempotent-Replayed"
	defaultDocs     = "https://github.com/oncemill/oncemill/blob/main/docs/http.md"
	defaultKey      = 255
	defaultBody     = 1 << 20
	defaultLinger   = 30 * time.Second
	headerRoom      = 1 << 10 // what headers may need of a stored response, beside its body
)

func (c Config) withDefaults(p oncemill.Policy) Config {
	set(&c.Group, "http")
	set(&c.Unsupported, IgnoreKey)
	set(&c.ReplayedHeader, defaultReplayed)
	set(&c.MinKeyLength, 1)
	set(&c.MaxKeyLength, defaultKey)
	set(&c.MaxRequestBody, defaultBody)
	set(&c.MaxResponseBody, p.MaxResultBytes/4*3)
	set(&c.ServerErrors, StoreServerErrors)
	set(&c.Linger, defaultLinger)
	set(&c.DocsURL, defaultDocs)
	if c.Route == nil {
		c.Route = pattern
	}
	if c.Supports == nil {
		c.Supports = Methods(http.MethodPost, http.MethodPatch)
	}
	if c.Required == nil {
		c.Required = func(*http.Request) bool { return true }
	}
	if len(c.Headers) == 0 {
		c.Headers = []string{defaultHeader}
	}
	if c.StoreHeaders == nil {
		c.StoreHeaders = StoredHeaders()
	}
	if c.WriteProblem == nil {
		c.WriteProblem = func(w http.ResponseWriter, _ *http.Request, p Problem) { p.Write(w) }
	}
	if c.Logger == nil {
		c.Logger = p.Logger
	}
	c.Headers = canonicalInOrder(c.Headers)
	c.FingerprintHeaders = canonicalNames(c.FingerprintHeaders)
	c.StoreHeaders = canonicalNames(c.StoreHeaders)
	c.ReplayedHeader = http.CanonicalHeaderKey(c.ReplayedHeader)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// pattern is the route that a ServeMux found, without the method that it may begin with.
func pattern(r *http.Request) string {
	if route, ok := strings.CutPrefix(r.Pattern, r.Method+" "); ok {
		return strings.TrimLeft(route, " \t")
	}
	return r.Pattern
}

func (c *Config) validate(p oncemill.Policy) error {
	probe := dedupstore.Key{Tenant: "t", Group: c.Group, Handler: "h", ID: "i"}
	docs, err := url.Parse(c.DocsURL)
	switch {
	case c.Account == nil:
		return invalid("Account", "is nil: say whose keys they are, or use SingleTenant")
	case probe.Validate() != nil:
		return invalid("Group", fmt.Sprintf("is %q, want 1 to %d bytes of UTF-8 without control characters", c.Group, dedupstore.MaxScopePart))
	case c.Unsupported != IgnoreKey && c.Unsupported != RefuseKey:
		return invalid("Unsupported", fmt.Sprintf("is %q, want %q or %q", c.Unsupported, IgnoreKey, RefuseKey))
	case c.ServerErrors != StoreServerErrors && c.ServerErrors != ReleaseServerErrors:
		return invalid("ServerErrors", fmt.Sprintf("is %q, want %q or %q", c.ServerErrors, StoreServerErrors, ReleaseServerErrors))
	case c.MinKeyLength < 1:
		return invalid("MinKeyLength", fmt.Sprintf("is %d, want at least 1", c.MinKeyLength))
	case c.MaxKeyLength < c.MinKeyLength || c.MaxKeyLength > dedupstore.MaxID:
		return invalid("MaxKeyLength", fmt.Sprintf("is %d, want Config.MinKeyLength (%d) to %d", c.MaxKeyLength, c.MinKeyLength, dedupstore.MaxID))
	case c.MaxRequestBody < 1:
		return invalid("MaxRequestBody", fmt.Sprintf("is %d, want at least 1", c.MaxRequestBody))
	case c.MaxResponseBody < 1 || c.MaxResponseBody > p.MaxResultBytes-headerRoom:
		return invalid("MaxResponseBody", fmt.Sprintf("is %d, want 1 to %d, which is Policy.MaxResultBytes less %d for headers",
			c.MaxResponseBody, p.MaxResultBytes-headerRoom, headerRoom))
	case c.MaxWait < 0:
		return invalid("MaxWait", fmt.Sprintf("is %v, want at least 0", c.MaxWait))
	case err != nil || !printable(c.DocsURL) || strings.ContainsAny(c.DocsURL, "<> \"") || docs.Fragment != "":
		return invalid("DocsURL", fmt.Sprintf("is %q, want a URL without fragment", c.DocsURL))
	}
	return c.validateHeaders()
}

// framing are headers that belong to one connection or transfer, or that the server sets itself: to repeat them would be wrong.
var framing = []string{
	"Connection", "Content-Length", "Date", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// absent are headers that net/http takes out of a request's header. Nothing of them would be compared.
var absent = []string{"Host", "Trailer", "Transfer-Encoding"}

func (c *Config) validateHeaders() error {
	for _, list := range []struct {
		field string
		names []string
	}{
		{"Headers", c.Headers},
		{"ReplayedHeader", []string{c.ReplayedHeader}},
		{"FingerprintHeaders", c.FingerprintHeaders},
		{"StoreHeaders", c.StoreHeaders},
	} {
		for _, name := range list.names {
			if !isToken(name) {
				return invalid(list.field, fmt.Sprintf("has %q, which is no header's name", name))
			}
		}
	}
	for _, name := range c.FingerprintHeaders {
		if slices.Contains(absent, name) {
			return invalid("FingerprintHeaders", fmt.Sprintf("has %q, which net/http takes out of a request's header; a host can be part of Config.Route", name))
		}
	}
	for _, name := range c.StoreHeaders {
		if slices.Contains(framing, name) || name == c.ReplayedHeader {
			return invalid("StoreHeaders", fmt.Sprintf("has %q, which belongs to one transfer only", name))
		}
	}
	return nil
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || '9' < c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Field: "Config." + field, Problem: problem}
}
