// Package headers knows which headers a copy of a message may carry to another broker.
package headers

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Order reports whether a header is one of the NATS server (Nats-*). These are orders to the stream that a message is
// published to: the stream drops a message with a known Nats-Msg-Id, refuses one with another stream's
// Nats-Expected-Stream, and purges itself for a Nats-Rollup.
func Order(name string) bool { return strings.HasPrefix(strings.ToLower(name), "nats-") }

// Portable reports whether every broker carries a header as it is. Its name must be a token of RFC 9110, and its value
// must have no control characters and no spaces around it.
func Portable(name, value string) bool {
	token := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= unicode.MaxASCII || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
	return token && utf8.ValidString(value) && !strings.ContainsFunc(value, unicode.IsControl) &&
		strings.TrimSpace(value) == value
}

// Text is a text as headers can carry it: on one line, without spaces around it, and not longer than most bytes.
func Text(s string, most int) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
	if len(s) > most {
		s = strings.TrimSpace(strings.ToValidUTF8(s[:most], ""))
	}
	return s
}

var (
	scopeEscaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	scopeUnescaper = strings.NewReplacer("%2F", "/", "%25", "%")
)

// Scope is the name of a scope in headers: tenant, group and handler, in which "/" and "%" are escaped.
func Scope(tenant, group, handler string) string {
	return scopeEscaper.Replace(tenant) + "/" + scopeEscaper.Replace(group) + "/" + scopeEscaper.Replace(handler)
}

// SplitScope reads what Scope wrote.
func SplitScope(scope string) (tenant, group, handler string, ok bool) {
	parts := strings.Split(scope, "/")
	if len(parts) != 3 {
		return "", "", "", false
	}
	for i, part := range parts {
		parts[i] = scopeUnescaper.Replace(part)
	}
	return parts[0], parts[1], parts[2], true
}

// CutString cuts a string of structured fields (RFC 9651) off the beginning of s, which begins with its quote.
func CutString(s string) (text, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c < ' ' || c > '~':
			return "", "", false
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}
