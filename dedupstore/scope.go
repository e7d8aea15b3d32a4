package dedupstore

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Scope says who deduplicates: it is a [Key] without the message ID.
type Scope struct{ Tenant, Group, Handler string }

// Scope returns the scope of a key.
func (k Key) Scope() Scope { return Scope{k.Tenant, k.Group, k.Handler} }

// String encodes the scope as tenant:group:handler, as [Key.String] does.
func (s Scope) String() string {
	return strings.TrimSuffix(Key{Tenant: s.Tenant, Group: s.Group, Handler: s.Handler}.String(), ":")
}

// ParseScope reads the text that [Scope.String] wrote. It accepts that one spelling only.
func ParseScope(s string) (Scope, error) {
	key, err := ParseKey(s + ":probe")
	return key.Scope(), err
}

// A ScopeUse says when a scope was used: when claims of it were made. The times are by the clocks of the callers.
// Stores keep microseconds.
type ScopeUse struct {
	Scope
	First, Last time.Time
}

// ScopeRetention is how long a store remembers a scope that is not used any more, at least.
const ScopeRetention = 400 * 24 * time.Hour

// A ScopeKeeper is a Store that remembers which scopes have been used. By it a guard notices a handler whose name has
// changed. Nothing else depends on it. So if a store cannot write what is noted, its claims go on all the same.
type ScopeKeeper interface {
	// NoteScopes notes uses. For each scope the store keeps the least First and the greatest Last that it was ever
	// told. It may be repeated. After an error some of the uses may have been noted. An [*InvalidError] says which use
	// is wrong; then none was.
	NoteScopes(ctx context.Context, uses []ScopeUse) error

	// Scopes returns the uses of all handlers in a tenant's group, in any order, as they were noted before the call. If
	// tenant and group are empty, it returns those of all groups; a store may leave some out where there are very many.
	Scopes(ctx context.Context, tenant, group string) ([]ScopeUse, error)
}

// Validate reports the first part that is wrong, as an [*InvalidError].
func (u ScopeUse) Validate() error {
	if err := (Key{u.Tenant, u.Group, u.Handler, "probe"}).Validate(); err != nil {
		return err
	}
	switch {
	case u.First.IsZero():
		return invalid("ScopeUse.First", "is zero")
	case u.Last.Before(u.First):
		return invalid("ScopeUse.Last", fmt.Sprintf("is %v, before First", u.Last))
	}
	return nil
}

// ValidateScopes reports the first use that is wrong, as an [*InvalidError].
func ValidateScopes(uses []ScopeUse) error {
	for _, u := range uses {
		if err := u.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Widen returns the use with a first and a last time that include those of another use.
func (u ScopeUse) Widen(by ScopeUse) ScopeUse {
	if by.First.Before(u.First) {
		u.First = by.First
	}
	if by.Last.After(u.Last) {
		u.Last = by.Last
	}
	return u
}
