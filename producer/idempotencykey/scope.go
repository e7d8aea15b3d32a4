package idempotencykey

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"net/http"
	"slices"

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

// fingerprint identifies what a request asks for: method, route, path, query, chosen headers and body, each with its length
// before it.
func (m *Middleware) fingerprint(r *http.Request, route string, body []byte) dedupstore.Fingerprint {
	d := digest{sum: sha256.New()}
	d.text(r.Method)
	d.text(route)
	d.text(r.URL.EscapedPath())
	d.text(r.URL.RawQuery)
	for _, name := range m.config.FingerprintHeaders {
		values := r.Header.Values(name)
		d.size(len(values))
		for _, v := range values {
			d.text(v)
		}
	}
	d.size(len(body))
	d.sum.Write(body)
	var sum [sha256.Size]byte
	return dedupstore.Fingerprint{Scheme: m.scheme, Sum: base64.RawURLEncoding.EncodeToString(d.sum.Sum(sum[:0]))}
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

// canonicalNames returns header names in their canonical spelling, sorted, each once.
func canonicalNames(names []string) []string {
	canonical := make([]string, len(names))
	for i, n := range names {
		canonical[i] = http.CanonicalHeaderKey(n)
	}
	slices.Sort(canonical)
	return slices.Compact(canonical)
}
