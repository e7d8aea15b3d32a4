package producer

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gowebpki/jcs"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// A Fingerprinter identifies the content of a message, so that a reused ID is noticed. It is safe for concurrent use.
// An error means that the payload cannot be fingerprinted, now or later.
//
// Your own Fingerprinter names its method in Fingerprint.Scheme. If you change the sum of a payload, change the Scheme
// too. Otherwise each known message is a mismatch; one that waits for its next attempt is then dead-lettered without
// it.
type Fingerprinter func(payload []byte) (dedupstore.Fingerprint, error)

// FingerprintPayload is the SHA-256 of the whole payload, byte for byte: scheme "sha256". It never fails.
func FingerprintPayload(payload []byte) (dedupstore.Fingerprint, error) {
	return fingerprint("sha256", payload), nil
}

func fingerprint(scheme string, content []byte) dedupstore.Fingerprint {
	sum := sha256.Sum256(content)
	var text [43]byte
	base64.RawURLEncoding.Encode(text[:], sum[:])
	return dedupstore.Fingerprint{Scheme: scheme, Sum: string(text[:])}
}

// JSONFields chooses which parts of a JSON document make its fingerprint. Zero: all of it.
//
// Fields are JSON Pointers (RFC 6901): "/customer/id" is the member id of the member customer. In a name, "~1" stands
// for a slash and "~0" for a tilde. An array takes no step: the rest applies to each element, so "/items/price" is the
// price of every item.
type JSONFields struct {
	// Keep are the fields that count, with all that is below them. Empty: all fields. A document without any of them is
	// an error, because all such documents would look alike.
	Keep []string

	// Strip are fields that do not count, such as a timestamp of sending, also below kept fields. One that covers a
	// field of Keep is refused, because nothing would be left of it.
	Strip []string
}

// FingerprintJSON returns a Fingerprinter for JSON payloads: the SHA-256 of their canonical form (RFC 8785). White
// space, the order of members and the spelling of numbers and strings do not matter. Its scheme is "json-sha256", with
// a suffix for the fields, if any, so that fingerprints of other fields are not compared.
//
// It returns a *dedupstore.InvalidError for a field that is not a JSON Pointer, and for one of Strip that covers one of
// Keep. The Fingerprinter returns one for a payload that is not JSON, has a member twice, or is nested deeper than
// 10,000 levels. So it does for a number that does not fit. RFC 8785 takes numbers for IEEE 754 doubles and writes them
// with up to 17 digits. An integer that would come out as its neighbour is refused, unless it is stripped:
// 9007199254740993, also with ".0" or "e0" after it. Integers up to 2^53, or with at most 15 digits before their zeros,
// always fit. A number that is not zero, but too close to it for a double, is refused too. Other fractions are compared
// as doubles.
func FingerprintJSON(fields JSONFields) (Fingerprinter, error) {
	keep, err := pointers("JSONFields.Keep", fields.Keep)
	if err != nil {
		return nil, err
	}
	strip, err := pointers("JSONFields.Strip", fields.Strip)
	if err != nil {
		return nil, err
	}
	for i, s := range strip {
		covers := func(k []string) bool { return len(s) <= len(k) && slices.Equal(s, k[:len(s)]) }
		if j := slices.IndexFunc(keep, covers); j >= 0 {
			return nil, invalid(fmt.Sprintf("JSONFields.Strip[%d]", i),
				fmt.Sprintf("is %q: it covers JSONFields.Keep[%d], %q, of which nothing would be left", fields.Strip[i],
					j, fields.Keep[j]))
		}
	}
	scheme := fields.scheme()
	return func(payload []byte) (dedupstore.Fingerprint, error) {
		doc, err := parseJSON(payload)
		if err != nil {
			return dedupstore.Fingerprint{}, err
		}
		if keep != nil {
			kept, some := keepFields(doc, keep)
			if !some {
				return dedupstore.Fingerprint{}, invalid("payload", fmt.Sprintf("has none of the fields %q",
					fields.Keep))
			}
			doc = kept
		}
		stripFields(doc, strip)
		if place, problem := badNumber(doc); problem != "" {
			return dedupstore.Fingerprint{}, invalid("payload", fmt.Sprintf("at %.200q %s", place, problem))
		}
		canonical, err := canonicalJSON(doc)
		if err != nil {
			return dedupstore.Fingerprint{}, err
		}
		return fingerprint(scheme, canonical), nil
	}, nil
}

// scheme names the method. It depends on the sets of fields, not on their order.
func (f JSONFields) scheme() string {
	const all = "json-sha256"
	if len(f.Keep)+len(f.Strip) == 0 {
		return all
	}
	keep, strip := sorted(f.Keep), sorted(f.Strip)
	parts := append([]string{strconv.Itoa(len(keep))}, keep...)
	return all + "." + ids.Derive("oncemill/fingerprint", append(parts, strip...)...)
}

func sorted(fields []string) []string { return slices.Compact(slices.Sorted(slices.Values(fields))) }

// pointers splits JSON Pointers into their steps.
func pointers(field string, list []string) ([][]string, error) {
	var all [][]string
	for i, p := range list {
		invalid := func(problem string) error {
			return invalid(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("is %q: %s", p, problem))
		}
		if !strings.HasPrefix(p, "/") {
			return nil, invalid(`want a JSON Pointer that begins with "/", such as "/order/amount"`)
		}
		steps := strings.Split(p[1:], "/")
		for j, s := range steps {
			if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(s), "~") {
				return nil, invalid(`"~" is written as "~0"`)
			}
			steps[j] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
		}
		all = append(all, steps)
	}
	return all, nil
}

// below returns what is left of the pointers after a step into the named member, and whether one of them ends there.
func below(paths [][]string, name string) (rest [][]string, ends bool) {
	for _, p := range paths {
		switch {
		case p[0] != name:
		case len(p) == 1:
			ends = true
		default:
			rest = append(rest, p[1:])
		}
	}
	return rest, ends
}

// keepFields returns the parts of a document that the pointers lead to, and whether there are any.
func keepFields(doc any, paths [][]string) (kept any, some bool) {
	switch doc := doc.(type) {
	case map[string]any:
		object := map[string]any{}
		for name, value := range doc {
			rest, ends := below(paths, name)
			if !ends {
				if value, ends = keepFields(value, rest); !ends {
					continue
				}
			}
			object[name], some = value, true
		}
		return object, some
	case []any:
		array := make([]any, len(doc)) // elements without any of the fields become null or {}, to keep their place
		for i, value := range doc {
			element, ok := keepFields(value, paths)
			array[i], some = element, some || ok
		}
		return array, some
	}
	return nil, false
}

// stripFields removes what the pointers lead to from a document.
func stripFields(doc any, paths [][]string) {
	if len(paths) == 0 {
		return
	}
	switch doc := doc.(type) {
	case map[string]any:
		for name, value := range doc {
			rest, ends := below(paths, name)
			if ends {
				delete(doc, name)
			} else {
				stripFields(value, rest)
			}
		}
	case []any:
		for _, value := range doc {
			stripFields(value, paths)
		}
	}
}

// canonicalize is RFC 8785. Its errors quote the payload, so they are not passed on.
func canonicalize(text []byte) ([]byte, error) {
	canonical, err := jcs.Transform(text)
	if err != nil {
		return nil, invalid("payload",
			"has no canonical form (RFC 8785): an object has a member twice, a string holds half of a surrogate pair, "+
				"or a number is beyond a double")
	}
	return canonical, nil
}
