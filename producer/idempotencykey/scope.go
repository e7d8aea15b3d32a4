package idempotencykey

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"net/http"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// derivedPrefix begins what stands in a key in place of a name that does not fit there. A name that begins with it is
// replaced as well, so that no name can look like what replaces another. No method begins with it (RFC 9110, section 5.6.2).
const derivedPrefix = "="

// key returns the key of a request: account, API, method and route, and what the client sent. Two different combinations
// never give the same key.
func (c *Config) key(account, method, route, id string) dedupstore.Key {
	return dedupstore.Key{
		Tenant:  scopePart(account),
		Group:   c.Group,
		Handler: scopePart(method + " " + route), // a method has no space
		ID:      id,
	}
}

func scopePart(name string) string {
	fits := name != "" && len(name) <= dedupstore.MaxScopePart && printable(name) && name[:1] != derivedPrefix &&
		name[0] != '~' // which the engine keeps for itself
	if fits {
		return name
	}
	return derivedPrefix + ids.Derive("oncemill/idempotencykey", name)
}

// scheme names how fingerprints are made. It depends on the set of headers: requests that were fingerprinted with others
// are not compared.
func (c *Config) fingerprintScheme() string {
	const base = "http-sha256"
	if len(c.FingerprintHeaders) == 0 {
		return base
	}
	return base + "." + ids.Derive("oncemill/idempotencykey/fingerprint", c.FingerprintHeaders...)
}

// fingerprint identifies what a request asks for: method, route, path and query, as the handler sees them and as the client sent
// them, chosen headers and body, each with its length before it.
func (m *Middleware) fingerprint(r *http.Request, route string, body []byte) dedupstore.Fingerprint {
	d := digest{sum: sha256.New(), buffer: make([]byte, 0, 256)}
	d.text(r.Method)
	d.text(route)
	d.text(r.URL.EscapedPath())
	d.text(r.URL.RawQuery)
	d.text(target(r))
	for _, name := range m.config.FingerprintHeaders {
		values := r.Header.Values(name)
		d.size(len(values))
		for _, v := range values {
			d.text(v)
		}
	}
	d.size(len(body))
	d.sum.Write(body)
	sum := d.sum.Sum(d.buffer[128:128]) // behind the text that is made of it
	d.buffer = base64.RawURLEncoding.AppendEncode(d.buffer[:0], sum)
	return dedupstore.Fingerprint{Scheme: m.scheme, Sum: string(d.buffer)}
}

// digest hashes texts such that their boundaries count.
type digest struct {
	sum    hash.Hash
	buffer []byte
}

func (d *digest) size(n int) {
	d.buffer = binary.BigEndian.AppendUint64(d.buffer[:0], uint64(n))
	d.sum.Write(d.buffer)
}

func (d *digest) text(s string) {
	d.buffer = append(binary.BigEndian.AppendUint64(d.buffer[:0], uint64(len(s))), s...)
	d.sum.Write(d.buffer)
}

// target is what the client asked for, before http.StripPrefix and the like changed the URL: path and query of the request
// line, also of one that a proxy has sent with scheme and host.
func target(r *http.Request) string {
	uri := r.RequestURI
	if strings.HasPrefix(uri, "/") {
		return uri
	}
	if _, rest, absolute := strings.Cut(uri, "://"); absolute {
		_, path, _ := strings.Cut(rest, "/")
		return "/" + path
	}
	return uri
}

// canonicalInOrder returns header names in their canonical spelling, each once, the first first.
func canonicalInOrder(names []string) []string {
	var canonical []string
	for _, n := range names {
		if n = http.CanonicalHeaderKey(n); !slices.Contains(canonical, n) {
			canonical = append(canonical, n)
		}
	}
	return canonical
}

// canonicalNames is canonicalInOrder for names whose order must not matter: they are sorted.
func canonicalNames(names []string) []string {
	canonical := canonicalInOrder(names)
	slices.Sort(canonical)
	return canonical
}
