package idempotencykey

import (
	"strings"
	"testing"
)

func TestKey_ScopesOfDifferentAccountsAndRoutesAreNeverEqual(t *testing.T) {
	t.Parallel()
	c := Config{Group: "http"}
	long := strings.Repeat("x", 200)
	type scope struct{ account, method, route string }
	seen := map[string]scope{}
	add := func(s scope) string {
		k := c.key(s.account, s.method, s.route, "id")
		if err := k.Validate(); err != nil {
			t.Errorf("%v: %v", s, err)
		}
		if other, known := seen[k.String()]; known {
			t.Errorf("%v and %v share a key", s, other)
		}
		seen[k.String()] = s
		return k.Tenant
	}
	derived := add(scope{long, "POST", "/a"})
	for _, s := range []scope{
		{derived, "POST", "/a"}, // an account that calls itself what replaces another's name
		{long + "x", "POST", "/a"},
		{"acme", "POST", "/a"}, {"acme", "PUT", "/a"}, {"acme", "POST", "/a/{id}"}, {"acme", "POST", long}, {"acme",
			"POST", long + "y"},
		{"acme:POST", "POST", "/a"}, {"ac", "me", "POST /a"}, {"\u00e4", "POST", "/a"}, {"~acme", "POST", "/a"},
		{"acme", "~POST", "/a"},
	} {
		add(s)
	}
}

// A client may send any method, and each would be a scope.
func TestKey_MethodsThatHTTPDoesNotKnowAreOneScope(t *testing.T) {
	t.Parallel()
	c := Config{Group: "http"}
	one, other := c.key("acme", "M1", "/a", "id"), c.key("acme", "M2", "/a", "id")
	if one != other || one.Handler != "_OTHER /a" || c.key("acme", "PUT", "/a", "id") == one {
		t.Errorf("keys %v and %v", one, other)
	}
}
