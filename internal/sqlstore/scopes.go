package sqlstore

import (
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
)

// ScopesOf returns the range of what the scopes of a group are called: names from the first one on that are less than
// the second, byte by byte. Without a tenant and a group, it is that of all scopes.
func ScopesOf(tenant, group string) (from, to string) {
	if tenant+group == "" {
		return "", "\x7f" // no name has it, or what is behind it: see Key.String
	}
	from = dedupstore.Scope{Tenant: tenant, Group: group}.String() // which ends with the colon before the handler
	return from, strings.TrimSuffix(from, ":") + ";"               // which follows ":"
}
