package requests

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/ids"
)

const maxKey = 255 // characters, as Stripe has it

// Key returns the key that a request carries in the values of a header or of metadata, and "" if there are none. The
// problem tells the client what is wrong with them. It never holds the key: a client may have sent something else by
// mistake.
func Key(values []string) (key, problem string) {
	switch len(values) {
	case 0:
		return "", ""
	case 1:
		key, problem = parseKey(values[0])
	default:
		return "", "is there more than once"
	}
	if len(key) > maxKey {
		return "", lengthProblem(key)
	}
	return key, problem
}

// PlainKeyProblem says what is wrong with a key that stands in a field of its own, without quotes.
func PlainKeyProblem(key string) string {
	switch {
	case len(key) > maxKey:
		return lengthProblem(key)
	case !Printable(key):
		return "has a character that is not printable ASCII"
	}
	return ""
}

func lengthProblem(key string) string {
	return fmt.Sprintf("has %d characters, want 1 to %d", len(key), maxKey)
}

// parseKey reads the value of the header. It is a string of structured fields (RFC 9651, section 3.3.3), whose
// parameters are ignored, or bare text without a space, as most clients send it. Both spellings of a text are the same
// key.
func parseKey(value string) (key, problem string) {
	value = strings.Trim(value, " \t")
	if !strings.HasPrefix(value, `"`) {
		if problem := BareProblem(value); problem != "" {
			return "", problem
		}
		return value, ""
	}
	text, rest, ok := headers.CutString(value)
	switch {
	case !ok:
		return "", "is not a string as RFC 9651 writes it"
	case text == "":
		return "", "is empty"
	case !parameters.MatchString(rest):
		return "", "has something after its closing quote that is no parameter of RFC 9651"
	}
	return text, ""
}

// parameters are those of an item (RFC 9651, section 3.1.2), each with the bare item that it may have (section 3.3): a
// number, date, string, token, byte sequence, boolean or display string.
var parameters = regexp.MustCompile(`^(; *[a-z*][a-z0-9_.*-]*(=(` + strings.Join([]string{
	`-?[0-9]{1,12}\.[0-9]{1,3}`, `@?-?[0-9]{1,15}`, `"([ !#-\[\]-~]|\\["\\])*"`,
	`[A-Za-z*][A-Za-z0-9!#$%&'*+.^_` + "`" + `|~:/-]*`, `:[A-Za-z0-9+/]*={0,2}:`, `\?[01]`,
	`%"([ !#$&-~]|%[0-9a-f]{2})*"`,
}, "|") + `))?)*$`)

// BareProblem says what is wrong with bare text: it must have no character with a meaning in structured fields, lists
// or parameters.
func BareProblem(s string) string {
	if s == "" {
		return "is empty"
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c <= ' ' || c > '~':
			return "has a character that is not visible ASCII"
		case strings.IndexByte(`"\,;`, c) >= 0:
			return fmt.Sprintf("has the character %q, which needs a quoted string (RFC 9651)", c)
		}
	}
	return ""
}

// QuoteKey writes a key as a string of structured fields.
func QuoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// Printable reports whether a text has printable ASCII only.
func Printable(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// ScopePart replaces a name that does not fit into a key by "=" and a hash. It also replaces a name that begins with
// "=", so that no name looks like such a hash.
func ScopePart(name string) string {
	fits := name != "" && len(name) <= dedupstore.MaxScopePart && Printable(name) && name[0] != '=' &&
		name[0] != '~' && !ids.IsOfStep(name) // which the engine keeps for itself
	if fits {
		return name
	}
	return "=" + ids.Derive("oncemill/idempotencykey", name)
}
