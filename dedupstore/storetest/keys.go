package storetest

import (
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
)

var keyCases = []testCase{
	{
		name: "keys/handlers-of-one-group",
		why:  "two handlers of one group on one topic both have to run, and neither settles for the other",
		test: func(k *kit) {
			first, second := k.request("1"), k.request("1")
			second.Key.Handler = "mail"
			a := k.claim(first, dedupstore.AcquiredRun).Claim
			b := k.claim(second, dedupstore.AcquiredRun)
			k.found(b, dedupstore.Absent)
			k.settle(a, finish(succeeded("charged")))
			second.Owner = newOwner()
			k.claim(second, dedupstore.Busy)
			k.settle(b.Claim, finish(succeeded("mailed")))
			k.sameOutcome(k.claim(first, dedupstore.Done).Outcome, succeeded("charged"))
			k.sameOutcome(k.claim(second, dedupstore.Done).Outcome, succeeded("mailed"))
		},
	},
	{
		name: "keys/never-collide",
		why:  "two keys that share a record make one of the messages disappear",
		test: func(k *kit) {
			// With the group, which is this case's own, in the middle: what is moved over a separator stays comparable.
			keys := []dedupstore.Key{
				{Tenant: "t", Group: k.group, Handler: "x", ID: "y"},
				{Tenant: "t", Group: k.group, Handler: "y", ID: "x"},
				{Tenant: "x", Group: k.group, Handler: "t", ID: "y"},
			}
			for _, sep := range []string{
				":", "/", "|", ".", "-", "_", ",", ";", " ", "%", "%3A", "%253A", "\\", "\\:",
				"::", "#", "+", "{}", "'", `"`, "\u2028",
			} {
				keys = append(
					keys,
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: "a" + sep + "b", ID: "c"},
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: "a", ID: "b" + sep + "c"},
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: "a" + sep, ID: "b" + sep + "c"},
					dedupstore.Key{Tenant: "t" + sep + "a", Group: k.group, Handler: "b", ID: "c"},
				)
			}
			for _, id := range []string{
				"a", "A", "ä", "a\u0308", "Ä", "a ", " a", "ａ", "ß", "ss", "SS", "İ", "i", "0", "00", "1e1", "10",
				"null", "NULL", "nil",
				"{a}", "{a}b", "{}", "*", "a*", "a?", "_", "a_", "a%", "%", "%25", "''", "';--", "..", "/", "$a", "🦊",
				"\U0001F98A\uFE0F",
			} {
				keys = append(keys, dedupstore.Key{Tenant: "t", Group: k.group, Handler: "ids", ID: id})
			}
			part, id := strings.Repeat("p", dedupstore.MaxScopePart-1), strings.Repeat("i", dedupstore.MaxID-1)
			wide := strings.Repeat("界", dedupstore.MaxID/3-1)
			for _, end := range []string{"", "1", "2"} {
				keys = append(
					keys,
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: part + end, ID: "long"},
					dedupstore.Key{Tenant: part + end, Group: k.group, Handler: "h", ID: "long"},
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: "h", ID: id + end},
					dedupstore.Key{Tenant: "t", Group: k.group, Handler: "h", ID: wide + end},
				)
			}
			k.distinct(keys)
		},
	},
	{
		name: "keys/every-part-counts",
		why:  "who deduplicates is told by tenant, group and handler together",
		test: func(k *kit) {
			base := k.key("1")
			tenant, group, handler, id := base, base, base, base
			tenant.Tenant, group.Group, handler.Handler, id.ID = "globex", k.group+"2", "mail", "2"
			k.distinct([]dedupstore.Key{base, tenant, group, handler, id})
		},
	},
}

// distinct claims and finishes each key, and wants each to have a record of its own.
func (k *kit) distinct(keys []dedupstore.Key) {
	k.Helper()
	for _, key := range keys {
		r := k.request("")
		r.Key = key
		a := k.ask(r)
		if a.Status != dedupstore.AcquiredRun || a.Claim.Attempt != 1 { // asked again, it finds itself
			k.Errorf("the first claim of %q was answered %s (found %s, attempt %d), want a first run: "+
				"it shares a record with a key before it",
				[]string{key.Tenant, key.Handler, key.ID}, a.Status, a.Found, a.Claim.Attempt)
			continue
		}
		k.settle(a.Claim, finish(succeeded(key.String())))
	}
	for _, key := range keys {
		r := k.request("")
		r.Key = key
		k.sameOutcome(k.claim(r, dedupstore.Done).Outcome, succeeded(key.String()))
	}
}
