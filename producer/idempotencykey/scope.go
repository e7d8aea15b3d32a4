package idempotencykey

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/requests"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// key returns the key of a request: account, API, method, route, and the client's key. Different combinations never
// give the same key. Methods that HTTP does not know are one, so that no client makes scopes without end; fingerprints
// tell them apart.
func (c *Config) key(account, method, route, id string) dedupstore.Key {
	return dedupstore.Key{
		Tenant:  requests.ScopePart(account),
		Group:   c.Group,
		Handler: requests.ScopePart(telemetry.Method(method) + " " + route), // a method has no space
		ID:      id,
	}
}

// fingerprint identifies what a request asks for: the body, and method, route, path and query, both as the handler sees
// them and as the client sent them. The length before each part makes the boundaries count.
func fingerprint(r *http.Request, route string, body []byte) dedupstore.Fingerprint {
	sum := sha256.New()
	for _, part := range []string{r.Method, route, r.URL.EscapedPath(), r.URL.RawQuery, target(r)} {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	sum.Write(body)
	return dedupstore.Fingerprint{Scheme: "http-sha256", Sum: base64.RawURLEncoding.EncodeToString(sum.Sum(nil))}
}

// target is the path and query of the request line, before http.StripPrefix and the like changed the URL. A proxy may
// have sent them with scheme and host.
func target(r *http.Request) string {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.RequestURI()
	}
	return r.RequestURI
}
