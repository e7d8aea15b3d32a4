// Package headers knows which headers a copy of a message may carry to another broker.
package headers

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Order reports whether a header is one of the NATS server (Nats-*), which are orders to the stream that a message is
// published to: it would take an equal Nats-Msg-Id for a duplicate and drop the message, refuse it for another stream's
// Nats-Expected-Stream, and purge itself for a Nats-Rollup.
func Order(name string) bool { return strings.HasPrefix(strings.ToLower(name), "nats-") }

// Portable reports whether every broker carries a header as it is: a token of RFC 9110 as its name, and a value without
// control characters or spaces around it.
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
