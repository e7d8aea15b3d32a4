package idempotencykey

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/oncemill/oncemill/internal/headers"
)

// clientKey returns the key of a request, and "" if it has none. The problem tells the client what is wrong with the
// header. It never holds the key: a client may have sent something else by mistake.
func clientKey(h http.Header) (key, problem string) {
	values := h.Values(keyHeader)
	switch len(values) {
	case 0:
		return "", ""
	case 1:
		key, problem = parseKey(values[0])
	default:
		return "", "is there more than once"
	}
	if len(key) > maxKey {
		return "", fmt.Sprintf("has %d characters, want 1 to %d", len(key), maxKey)
	}
	return key, problem
}

// parseKey reads the value of the header. It is a string of structured fields (RFC 9651, section 3.3.3), whose
// parameters are ignored, or bare text without a space, as most clients send it. Both spellings of a text are the same
// key.
func parseKey(value string) (key, problem string) {
	value = strings.Trim(value, " \t")
	if !strings.HasPrefix(value, `"`) {
		if problem := bareProblem(value); problem != "" {
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
	`[A-Za-z*][A-Za-z0-9!#$%&'*+.^_` + "`" + `|~:/-]*`, `:[A-Za-z0-9+/]*={0,2}:`, `\?[01]`, `%"([ !#$&-~]|%[0-9a-f]{2})*"`,
}, "|") + `))?)*$`)

// bareProblem refuses characters that have a meaning in structured fields, lists or parameters.
func bareProblem(s string) string {
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

// quoteKey writes a key as a string of structured fields.
func quoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}
