package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// scopes returns the store as one that remembers scopes, or skips the case.
func (k *kit) scopes() dedupstore.ScopeKeeper {
	k.Helper()
	s, ok := k.Store.(dedupstore.ScopeKeeper)
	if !ok {
		k.Skipf("skipped: %T does not implement dedupstore.ScopeKeeper", k.Store)
	}
	return s
}

// scopesBegan is when the uses of cases begin: before now, because the times of a note are its caller's.
var scopesBegan = time.Now().Add(-24 * time.Hour).Truncate(time.Hour)

// used is a use of a handler, so many minutes after that.
func (k *kit) used(handler string, first, last int) dedupstore.ScopeUse {
	began := scopesBegan
	return dedupstore.ScopeUse{
		Scope: dedupstore.Scope{Tenant: "acme", Group: k.group, Handler: handler},
		First: began.Add(time.Duration(first) * time.Minute), Last: began.Add(time.Duration(last) * time.Minute),
	}
}

func (k *kit) note(uses ...dedupstore.ScopeUse) {
	k.Helper()
	if err := k.scopes().NoteScopes(k.Context(), uses); err != nil {
		k.Fatalf("note %d scopes: %v", len(uses), err)
	}
}

// remembers wants the uses of the group of the first one to be these.
func (k *kit) remembers(want ...dedupstore.ScopeUse) {
	k.Helper()
	got, err := k.scopes().Scopes(k.Context(), want[0].Tenant, want[0].Group)
	if err != nil {
		k.Fatalf("read scopes: %v", err)
	}
	if got, want := usesText(got), usesText(want); got != want {
		k.Errorf("the store remembers\n%s\nwant\n%s", got, want)
	}
}

func usesText(uses []dedupstore.ScopeUse) string {
	var lines []string
	for _, u := range uses {
		first, last := u.First.UTC().Format(time.RFC3339Nano), u.Last.UTC().Format(time.RFC3339Nano)
		lines = append(lines, fmt.Sprintf("%s %s to %s", u.Scope, first, last))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var scopeCases = []testCase{
	{
		name: "scopes/first-and-last-use",
		why:  "a renamed handler is told from a new one by when the others were used",
		test: func(k *kit) {
			k.note(k.used("charge", 10, 10), k.used("refund", 20, 30))
			k.remembers(k.used("charge", 10, 10), k.used("refund", 20, 30))
			k.note(k.used("charge", 60, 60))
			k.remembers(k.used("charge", 10, 60), k.used("refund", 20, 30))
			k.note(k.used("charge", 5, 20), k.used("refund", 25, 25)) // of a process whose note came late
			k.remembers(k.used("charge", 5, 60), k.used("refund", 20, 30))
			k.note()
			k.note(k.used("charge", 70, 70), k.used("charge", 65, 65))
			k.remembers(k.used("charge", 5, 70), k.used("refund", 20, 30))
		},
	},
	{
		name: "scopes/of-one-group",
		why:  "a handler of another team or another tenant says nothing about this one's name",
		test: func(k *kit) {
			mine, group, tenant := k.used("charge", 1, 1), k.used("charge", 2, 2), k.used("charge", 3, 3)
			group.Group += "2"
			tenant.Tenant = "acme2"
			k.note(mine, group, tenant)
			k.remembers(mine)
			k.remembers(group)
			k.remembers(tenant)
			none, err := k.scopes().Scopes(k.Context(), "acme", k.group+"3")
			if err != nil || len(none) > 0 {
				k.Errorf("a group that was never used has %v, error %v", none, err)
			}
		},
	},
	{
		name: "scopes/of-all-groups",
		why:  "an operator who knows the ID of a message only would have to look through all records",
		test: func(k *kit) {
			mine, other := k.used("charge", 1, 1), k.used("mail: é%", 2, 2)
			other.Group += `2:é%"`
			k.note(mine)
			k.note(other)
			all, err := k.scopes().Scopes(k.Context(), "", "")
			if err != nil {
				k.Fatalf("read all scopes: %v", err)
			}
			for _, u := range []dedupstore.ScopeUse{mine, other} {
				if n := len(slices.DeleteFunc(slices.Clone(all), func(o dedupstore.ScopeUse) bool {
					return o.Scope != u.Scope
				})); n != 1 {
					k.Errorf("%v is %d times among %v", u.Scope, n, all)
				}
			}
			if len(all) < 2 || slices.ContainsFunc(all, func(u dedupstore.ScopeUse) bool {
				return (dedupstore.Key{Tenant: u.Tenant, Group: u.Group, Handler: u.Handler, ID: "1"}).Validate() != nil
			}) {
				k.Errorf("all scopes are %v", all)
			}
		},
	},
	{
		name: "scopes/of-any-names",
		why:  "two handlers whose names a store takes for one hide each other's change of name",
		test: func(k *kit) {
			var uses []dedupstore.ScopeUse
			names := []string{
				"charge", "Charge", "charge ", "char%67e", "a:b", "a", "é", `"*?'\`, "a.b.>", "{x}", "~charge",
			}
			for i, name := range names {
				uses = append(uses, k.used(name, i, i))
			}
			k.note(uses...)
			k.remembers(uses...)
			odd := k.used("b:c", 1, 2)
			odd.Tenant, odd.Group = "a:*", k.group+`:é%"`
			k.note(odd)
			k.remembers(odd)
		},
	},
	{
		name: "scopes/noted-by-many-at-once",
		why:  "processes that start together must not undo each other's notes",
		test: func(k *kit) {
			k.scopes()
			const many = 8
			want := k.used("charge", 0, many-1)
			all := []dedupstore.ScopeUse{want}
			var noting sync.WaitGroup
			for i := range many {
				own := k.used(fmt.Sprintf("handler-%d", i), i, i)
				all = append(all, own)
				noting.Go(func() {
					uses := []dedupstore.ScopeUse{k.used("charge", i, i), own}
					if err := k.scopes().NoteScopes(k.Context(), uses); err != nil {
						k.Error(err)
					}
				})
			}
			noting.Wait()
			k.remembers(all...)
		},
	},
	{
		name: "scopes/are-no-records",
		why:  "an operator who lists, counts or explains records must not meet what the store notes for itself",
		test: func(k *kit) {
			k.scopes()
			k.inspector()
			k.run("1")
			k.note(k.used("charge", 1, 1), k.used("refund", 1, 1))
			k.lists("all", dedupstore.Filter{}, "1")
			k.lists("one handler", dedupstore.Filter{Tenant: "acme", Handler: "charge"}, "1")
			if got := k.count(); got[dedupstore.Running] != 1 || len(got) != 1 {
				k.Errorf("%v are counted, want the record alone", got)
			}
			if r := k.look("scopes"); r.State != dedupstore.Absent {
				k.Errorf("there is a record: %+v", r)
			}
		},
	},
	{
		name: "scopes/nonsense-is-refused",
		why:  "a note without a time makes every handler look as old as the epoch",
		test: func(k *kit) {
			no := func(field string, change func(u *dedupstore.ScopeUse)) {
				k.Helper()
				u := k.used("charge", 2, 2)
				change(&u)
				err := k.scopes().NoteScopes(k.Context(), []dedupstore.ScopeUse{k.used("refund", 1, 1), u})
				k.invalid(err, field, "a note")
			}
			long := strings.Repeat("x", dedupstore.MaxScopePart+1)
			no("Key.Tenant", func(u *dedupstore.ScopeUse) { u.Tenant = "" })
			no("Key.Handler", func(u *dedupstore.ScopeUse) { u.Handler = long })
			no("ScopeUse.First", func(u *dedupstore.ScopeUse) { u.First = time.Time{} })
			no("ScopeUse.Last", func(u *dedupstore.ScopeUse) { u.Last = u.First.Add(-time.Second) })
			if uses, err := k.scopes().Scopes(k.Context(), "acme", k.group); err != nil || len(uses) > 0 {
				k.Errorf("after refused notes there are %v, error %v", uses, err)
			}
		},
	},
}
