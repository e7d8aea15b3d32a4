// Package errtext makes of errors what can be kept.
package errtext

import (
	"fmt"
	"strings"
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
