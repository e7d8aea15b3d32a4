package sqlstore_test

import (
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestScopesOf_IsTheRangeOfOneGroup(t *testing.T) {
	t.Parallel()
	scope := func(tenant, group, handler string) string {
		return dedupstore.Scope{Tenant: tenant, Group: group, Handler: handler}.String()
	}
	from, to := sqlstore.ScopesOf("acme", "billing")
	for name, in := range map[string]bool{
		scope("acme", "billing", "charge"): true, scope("acme", "billing", "~"): true, scope("acme", "billing", "!"): true,
		scope("acme", "billing2", "charge"): false, scope("acme", "billin", "charge"): false,
		scope("acme", "billing!", "charge"): false, scope("acme2", "billing", "charge"): false,
	} {
		if got := from <= name && name < to; got != in {
			t.Errorf("%s is in the range %q to %q: %v, want %v", name, from, to, got, in)
		}
	}
	from, to = sqlstore.ScopesOf("", "")
	for _, name := range []string{scope("a", "b", "c"), scope("~", "~", "~"), scope("é", "ü", "日")} {
		if name < from || name >= to {
			t.Errorf("%s is not in the range of all, %q to %q", name, from, to)
		}
	}
}
