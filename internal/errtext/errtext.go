// Package errtext makes of errors what can be kept.
package errtext

import (
	"fmt"
	"strings"
	"unicode"
)

// maxBytes is the longest text.
const maxBytes = 1024

// Of is the text of an error, cut with a mark if it is longer than stores keep.
func Of(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD") // which databases refuse
	if len(s) <= maxBytes {
		return s
	}
	mark := fmt.Sprintf("… (%d bytes)", len(s))
	return strings.ToValidUTF8(s[:maxBytes-len(mark)], "") + mark
}

// ASCII is a text with a question mark for what not every encoding has.
func ASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, s)
}
