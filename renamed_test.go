package oncemill

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestMaybeRenamed_FollowsItsTable(t *testing.T) {
	t.Parallel()
	const minute, hour, day = time.Minute, time.Hour, 24 * time.Hour
	now := time.Now()
	used := func(handler string, first, last time.Duration) dedupstore.ScopeUse {
		return dedupstore.ScopeUse{
			Scope: dedupstore.Scope{Tenant: "default", Group: "payments", Handler: handler},
			First: now.Add(-first), Last: now.Add(-last),
		}
	}
	other := used("settle", 9*day, minute)
	other.Group = "invoices"
	tenant := used("settle", 9*day, minute)
	tenant.Tenant = "acme"
	for name, c := range map[string]struct {
		uses []dedupstore.ScopeUse
		want string // the old name; empty: no doubt
	}{
		"a new group":           {nil, ""},
		"another handler":       {[]dedupstore.ScopeUse{used("settle", 9*day, minute)}, "settle"},
		"several":               {[]dedupstore.ScopeUse{used("a", 9*day, hour), used("b", 9*day, minute), used("c", day, 2*hour)}, "b"},
		"the name is known":     {[]dedupstore.ScopeUse{used("settle", 9*day, minute), used("settle-v2", 0, 0)}, ""},
		"known for long":        {[]dedupstore.ScopeUse{used("settle-v2", 90*day, 80*day), used("settle", 9*day, minute)}, ""},
		"a first deployment":    {[]dedupstore.ScopeUse{used("settle", 10*minute, 0), used("refund", minute, minute)}, ""},
		"soon after it":         {[]dedupstore.ScopeUse{used("settle", 11*minute, minute), used("refund", minute, minute)}, "settle"},
		"beside a new one":      {[]dedupstore.ScopeUse{used("refund", minute, 0), used("settle", day, 2*hour)}, "settle"},
		"not within the window": {[]dedupstore.ScopeUse{used("settle", 90*day, 7*day+hour+minute)}, ""},
		"noted in the window":   {[]dedupstore.ScopeUse{used("settle", 90*day, 7*day+hour-minute)}, "settle"},
		"in shadow mode":        {[]dedupstore.ScopeUse{used("~settle", 9*day, minute)}, ""},
		"of another group":      {[]dedupstore.ScopeUse{other}, ""},
		"of another tenant":     {[]dedupstore.ScopeUse{tenant}, ""},
		"clocks that differ":    {[]dedupstore.ScopeUse{used("settle", 9*day, -minute)}, "settle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope := dedupstore.Scope{Tenant: "default", Group: "payments", Handler: "settle-v2"}
			old, doubtful := maybeRenamed(scope, c.uses, 7*day, now)
			if old.Handler != c.want || doubtful != (c.want != "") {
				t.Errorf("it may be %q under a new name: %t, want %q", old.Handler, doubtful, c.want)
			}
		})
	}
}

func TestAgo_IsAsPeopleSayIt(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Minute: "just now", time.Minute: "1 minute ago", 119 * time.Minute: "119 minutes ago",
		2 * time.Hour: "2 hours ago", 47 * time.Hour: "47 hours ago", 48 * time.Hour: "2 days ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
