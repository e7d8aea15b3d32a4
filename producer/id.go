package producer

import (
	"errors"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// NewID returns an ID for a new action: a UUIDv7 (RFC 9562), unique, ordered by time to the millisecond. Call it once
// per action, outside of all retries.
func NewID() string { return ids.New() }

// DeriveID returns the ID of an action that has a natural identity, such as an order number and a revision. It is a
// UUIDv8 (RFC 9562) made of the SHA-256 of the arguments. The same arguments give the same ID in every process and
// version; ("a", "bc") and ("ab", "c") differ. The namespace says whose identity it is ("shop/orders"); names that
// begin with "oncemill/" are taken.
//
// It panics without a namespace or without parts: every message would get the same ID, and all but one would be dropped
// as duplicates. Parts may be empty strings.
func DeriveID(namespace string, parts ...string) string {
	if namespace == "" || len(parts) == 0 {
		panic("producer: DeriveID needs a namespace and at least one part")
	}
	return ids.Derive(namespace, parts...)
}

// checkID returns a *dedupstore.InvalidError for an ID that cannot be a message's. It must have 1 to dedupstore.MaxID
// bytes of UTF-8, no control characters, and no spaces around it, which brokers cut off. Only a foreign ID may begin
// with "~".
func checkID(field, id string) error {
	if problem := idProblem(id); problem != "" {
		return invalid(field, problem)
	}
	return nil
}

func idProblem(id string) string {
	switch problem := textProblem(id); {
	case problem != "":
		return problem
	case strings.Trim(id, " ") != id:
		return "begins or ends with a space"
	case strings.HasPrefix(id, foreignPrefix) && !isForeign(id):
		return "begins with \"" + foreignPrefix + "\", which only IDs of foreign messages do"
	}
	return ""
}

// textProblem says why a text cannot be an ID or a part of one, or "". The rule is the stores'.
func textProblem(s string) string {
	err := dedupstore.Key{Tenant: "t", Group: "g", Handler: "h", ID: s}.Validate()
	if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); ok {
		return invalid.Problem
	}
	return ""
}
