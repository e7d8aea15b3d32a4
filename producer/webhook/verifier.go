package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Verifier proves that a request comes from a sender, and finds the event in it. It is safe for concurrent use.
//
// Verify gets the body as it came in, and does not change it. It returns a *SignatureError if the request is not proven
// (answered with 401), and any other error if it cannot tell (503). For a proven request that cannot be used it returns
// an Event without an ID (400). It returns the signed time, and does not look at the clock.
type Verifier interface {
	Verify(header http.Header, body []byte) (Event, error)
}

// An Event is what a proven request says.
type Event struct {
	// ID is the sender's ID of the event, which stays through retries and redeliveries. Empty only with a Reply, or if
	// the request cannot be used.
	ID string

	// Sent is when the request was signed. Zero: the scheme signs no time, and requests never grow old.
	Sent time.Time

	// Headers are the names of request headers without which the event cannot be understood. The message carries them.
	Headers []string

	// Fingerprint identifies the content. Zero: the SHA-256 of the whole body.
	Fingerprint dedupstore.Fingerprint

	// Reply answers a question of the sender, as plain text with status 200. Nothing is published then. Nil: none.
	Reply []byte
}

// SignatureError says why a request is not proven to be the sender's. It never holds a signature or a key. The sender
// gets the text, with status 401.
type SignatureError struct{ Problem string }

func (e *SignatureError) Error() string { return "webhook: " + e.Problem }

var errMismatch = &SignatureError{"no signature matches a known key"}

// eventError says why a proven request cannot be used. The sender gets the text, with status 400.
type eventError struct{ problem string }

func (e *eventError) Error() string { return "webhook: " + e.problem }

// minKey is how long a key must be, in bytes, against guessing. RFC 2104 advises the length of the hash, but senders
// hand out shorter keys; GitHub's own example has 26.
const minKey = 16

// keys are the secrets that a sender may sign with: more than one while keys are rotated.
type keys [][]byte

// newKeys takes secrets as they are. It refuses short ones: with an empty key anybody can sign. It also refuses a
// secret that was read from a file with its line end: each request would get a 401, and nothing would tell operators.
func newKeys(secret string, others []string) (keys, error) {
	var ks keys
	for i, s := range append([]string{secret}, others...) {
		if len(s) < minKey {
			return nil, fmt.Errorf("webhook: secret %d has %d bytes, want at least %d", i+1, len(s), minKey)
		}
		if strings.TrimRight(s, "\r\n") != s {
			return nil, fmt.Errorf("webhook: secret %d has a line end, as from a file: no request would be proven", i+1)
		}
		ks = append(ks, []byte(s))
	}
	return ks, nil
}

// signed reports whether one of the signatures is that of one of the keys over the concatenated parts. It compares in
// constant time.
func (ks keys) signed(signatures [][]byte, parts ...[]byte) bool {
	found := false
	for _, key := range ks {
		mac := hmac.New(sha256.New, key)
		for _, p := range parts {
			mac.Write(p)
		}
		sum := mac.Sum(nil)
		for _, s := range signatures {
			found = hmac.Equal(s, sum) || found
		}
	}
	return found
}

// A scheme is a Verifier with keys.
type scheme struct {
	keys   keys
	verify func(ks keys, h http.Header, body []byte) (Event, error)
}

// Verify implements Verifier.
func (s scheme) Verify(h http.Header, body []byte) (Event, error) { return s.verify(s.keys, h, body) }

func newScheme(
	verify func(keys, http.Header, []byte) (Event, error), secret string, others []string,
) (Verifier, error) {
	ks, err := newKeys(secret, others)
	if err != nil {
		return nil, err
	}
	return scheme{ks, verify}, nil
}

// signature reads the signature of a header that holds one, behind a prefix.
func signature(h http.Header, name, prefix string, decode func(string) ([]byte, error)) ([]byte, error) {
	header, err := one(h, name)
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(header, prefix)
	if !ok {
		return nil, &SignatureError{"header " + name + " does not begin with " + prefix}
	}
	sum, err := decode(text)
	if err != nil {
		return nil, errMismatch
	}
	return sum, nil
}

// maxHeader bounds the headers that verifiers read. Real ones have some hundred bytes.
const maxHeader = 4 << 10

// one returns the value of a header that must be there once: with two values it is not clear which one was signed.
func one(h http.Header, name string) (string, error) {
	switch values := h.Values(name); {
	case len(values) == 0 || values[0] == "":
		return "", &SignatureError{"header " + name + " is missing"}
	case len(values) > 1:
		return "", &SignatureError{"header " + name + " is there more than once"}
	case len(values[0]) > maxHeader:
		return "", &SignatureError{"header " + name + " is too long"}
	default:
		return values[0], nil
	}
}

// seconds reads a Unix time, written as senders do: digits only. 36 bits are some 2,000 years.
func seconds(text string) (time.Time, error) {
	n, err := strconv.ParseUint(text, 10, 36)
	if err != nil {
		return time.Time{}, &SignatureError{"the timestamp is not a Unix time in seconds"}
	}
	return time.Unix(int64(n), 0), nil
}
