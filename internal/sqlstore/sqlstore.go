// Package sqlstore is what stores and outboxes on SQL databases share, without a driver.
//
// How runs wait for a connection and how first runs make their records stay with each store: their databases lock and
// tell so differently that one program for both would be longer.
package sqlstore

import (
	"fmt"
	"regexp"
)

var simpleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// NameProblem says why statements cannot hold the name of a table or schema as it is, or "".
func NameProblem(name string, longest int) string {
	if len(name) <= longest && simpleName.MatchString(name) {
		return ""
	}
	return fmt.Sprintf("is %q, want up to %d ASCII letters, digits and underscores, not beginning with a digit",
		name, longest)
}
