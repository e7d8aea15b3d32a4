package idempotencykey

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// key returns the key of a request: account, API, method, route, and the client's key. Different combinations never
// give the same key.
func (c *Config) key(account, method, route, id string) dedupstore.Key {
	return dedupstore.Key{
		Tenant:  scopePart(account),
		Group:   c.Group,
		Handler: scopePart(method + " " + route), // a method has no space
		ID:      id,
	}
}

// scopePart replaces a name that does not fit into a key by "=" and a hash. It also replaces a name that begins with
// "=", so that no name looks like such a hash. No method begins with it (RFC 9110, section 5.6.2).
func scopePart(name string) string {
	fits := name != "" && len(name) <= dedupstore.MaxScopePart && printable(name) && name[0] != '=' &&
		name[0] != '~' // which the engine keeps for itself
	if fits {
		return name
	}
	return "=" + ids.Derive("oncemill/idempotencykey", name)
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
