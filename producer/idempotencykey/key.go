package idempotencykey

import (
	"fmt"
	"net/http"
	"strings"
)

// clientKey returns the key of a request, and "" if it has none. An error says what is wrong with the header, in words that
// the client may read.
func (c *Config) clientKey(h http.Header) (string, error) {
	var found string
	have := false
	for _, name := range c.Headers {
		values := h.Values(name)
		if len(values) == 0 {
			continue
		}
		if have || len(values) > 1 {
			return "", &keyError{name, "is there more than once"}
		}
		key, problem := parseKey(values[0])
		switch {
		case problem != "":
			return "", &keyError{name, problem}
		case len(key) < c.MinKeyLength || len(key) > c.MaxKeyLength:
			return "", &keyError{name, fmt.Sprintf("has %d characters, want %d to %d", len(key), c.MinKeyLength, c.MaxKeyLength)}
		}
		if c.CheckKey != nil {
			if err := c.CheckKey(key); err != nil {
				return "", &keyError{name, err.Error()}
			}
		}
		found, have = key, true
	}
	return found, nil
}

// keyError says what is wrong with the header of a request. It never holds the key: a client may have sent something else
// there by mistake.
type keyError struct{ header, problem string }

func (e *keyError) Error() string { return e.header + " " + e.problem }

// parseKey reads the value of the header: a string of structured fields (RFC 9651, section 3.3.3), whose parameters are
// ignored, or bare text without a space, as most clients send it. Both spellings of a text are the same key.
func parseKey(value string) (key, problem string) {
	value = strings.Trim(value, " \t")
	switch {
	case value == "":
		return "", "is empty"
	case value[0] != '"':
		if problem := bareProblem(value); problem != "" {
			return "", problem
		}
		return value, ""
	}
	text, rest, ok := cutString(value)
	switch {
	case !ok:
		return "", "is not a string as RFC 9651 writes it"
	case text == "":
		return "", "is empty"
	case !skipParameters(rest):
		return "", "has something after its closing quote that is no parameter"
	}
	return text, ""
}

// bareProblem refuses what a bare key must not hold: characters that structured fields, lists or parameters give a meaning.
func bareProblem(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case c <= ' ' || c > '~':
			return "has a character that is not visible ASCII"
		case c == '"' || c == '\\' || c == ',' || c == ';':
			return fmt.Sprintf("has the character %q, which needs a quoted string (RFC 9651)", c)
		}
	}
	return ""
}

// cutString cuts a structured field's string off the beginning of s, which begins with its quote.
func cutString(s string) (text, rest string, ok bool) {
	if i := strings.IndexAny(s[1:], `"\`); i >= 0 && s[1+i] == '"' && printable(s[1:1+i]) {
		return s[1 : 1+i], s[2+i:], true // nothing is escaped, as in nearly all
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// skipParameters reports whether s is nothing but parameters (RFC 9651, section 3.1.2).
func skipParameters(s string) bool {
	for s != "" {
		if s[0] != ';' {
			return false
		}
		s = strings.TrimLeft(s[1:], " ")
		end := 0
		for end < len(s) && isParameterKey(s[end], end == 0) {
			end++
		}
		if end == 0 {
			return false
		}
		s = s[end:]
		if !strings.HasPrefix(s, "=") {
			continue
		}
		var ok bool
		if s, ok = skipBareItem(s[1:]); !ok {
			return false
		}
	}
	return true
}

func isParameterKey(c byte, first bool) bool {
	switch {
	case 'a' <= c && c <= 'z', c == '*':
		return true
	case '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		return !first
	}
	return false
}

// skipBareItem passes over a parameter's value. What it means is of no interest, so only its extent is looked for.
func skipBareItem(s string) (rest string, ok bool) {
	if strings.HasPrefix(s, `"`) {
		_, rest, ok = cutString(s)
		return rest, ok
	}
	end := strings.IndexByte(s, ';')
	if end < 0 {
		end = len(s)
	}
	value := s[:end]
	return s[end:], value != "" && printable(value) && !strings.ContainsAny(value, ` ",\`)
}

// quoteKey writes a key as a string of structured fields.
func quoteKey(key string) string {
	if !strings.ContainsAny(key, `"\`) {
		return `"` + key + `"`
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}
