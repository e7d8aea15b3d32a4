package storetest

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// farthest is the longest duration that the contract allows.
const farthest = 100 * 365 * 24 * time.Hour

var validationCases = []testCase{
	{
		name: "validation/claim",
		why:  "a value that the contract does not allow is refused with the name of its field, and leaves no record",
		test: func(k *kit) {
			text := map[string]string{
				"empty": "", "control": "a\x00b", "newline": "a\n", "not UTF-8": "a\xffb",
				"long": strings.Repeat("x", 513),
			}
			for what, s := range text {
				k.badRequest("Key.Tenant", what, func(r *dedupstore.Request) { r.Key.Tenant = s })
				k.badRequest("Key.Group", what, func(r *dedupstore.Request) { r.Key.Group = s })
				k.badRequest("Key.Handler", what, func(r *dedupstore.Request) { r.Key.Handler = s })
				k.badRequest("Key.ID", what, func(r *dedupstore.Request) { r.Key.ID = s })
			}
			k.badRequest("Key.Tenant", "129 bytes",
				func(r *dedupstore.Request) { r.Key.Tenant = strings.Repeat("x", 129) })
			for _, owner := range []string{
				"", "fifteen-letters", strings.Repeat("x", 65),
				"with a space in it", "with-ü-in-the-middle", "with:colon:inside",
			} {
				k.badRequest("Request.Owner", owner, func(r *dedupstore.Request) { r.Owner = owner })
			}
			for _, d := range []time.Duration{
				0, -time.Second, time.Millisecond - 1, farthest + 1, math.MinInt64, math.MaxInt64,
			} {
				k.badRequest("Request.Lease", d.String(), func(r *dedupstore.Request) { r.Lease = d })
				k.badRequest("Request.Retention", d.String(), func(r *dedupstore.Request) { r.Retention = d })
			}
			for _, scheme := range []string{"", "a:b", "a b", "ü", strings.Repeat("x", 65)} {
				k.badRequest("Request.Fingerprint.Scheme", scheme,
					func(r *dedupstore.Request) { r.Fingerprint = dedupstore.Fingerprint{Scheme: scheme, Sum: "x"} })
			}
			for _, sum := range []string{"", "a:b", "a=", strings.Repeat("x", 129)} {
				k.badRequest("Request.Fingerprint.Sum", sum,
					func(r *dedupstore.Request) { r.Fingerprint = dedupstore.Fingerprint{Scheme: "x", Sum: sum} })
			}
			for _, attempts := range []int{0, -1} {
				k.badRequest("Request.MaxAttempts", "too few", func(r *dedupstore.Request) { r.MaxAttempts = attempts })
			}
			for _, trace := range []string{"a\nb", "\xff", strings.Repeat("x", 65)} {
				k.badRequest("Request.Trace", trace, func(r *dedupstore.Request) { r.Trace = trace })
			}
			k.found(k.claim(k.request("1"), dedupstore.AcquiredRun), dedupstore.Absent)
		},
	},
	{
		name: "validation/extend-and-settle",
		why: "a claim that no store granted, or a settlement that cannot be stored, is refused with the name of its " +
			"field, and changes nothing",
		test: func(k *kit) {
			c := k.run("1")
			for field, spoil := range map[string]func(*dedupstore.Claim){
				"Key.ID":          func(c *dedupstore.Claim) { c.Key.ID = "" },
				"Key.Handler":     func(c *dedupstore.Claim) { c.Key.Handler = "" },
				"Claim.Owner":     func(c *dedupstore.Claim) { c.Owner = "" },
				"Claim.Fence":     func(c *dedupstore.Claim) { c.Fence = 0 },
				"Claim.Lease":     func(c *dedupstore.Claim) { c.Lease = 0 },
				"Claim.Retention": func(c *dedupstore.Claim) { c.Retention = -1 },
			} {
				bad := c
				spoil(&bad)
				k.invalid(k.tryExtend(bad, long), field, "extend")
				k.invalid(dedupstore.SettleOne(k.Context(), k.Store, bad, finish(succeeded(""))), field, "settle")
			}
			for _, d := range []time.Duration{0, -time.Second, time.Millisecond - 1, farthest + 1} {
				k.invalid(k.tryExtend(c, d), "Extension.Lease", "extend")
				k.badSettlement(c, "Finish.Retention", dedupstore.Finish{Outcome: succeeded(""), Retention: d})
				k.badSettlement(c, "Published.Retention", dedupstore.Published{Retention: d})
			}
			reason := strings.Repeat("x", dedupstore.MaxReason+1)
			k.badSettlement(c, "Settlement", nil)
			k.badSettlement(c, "Outcome.Kind", finish(dedupstore.Outcome{}))
			k.badSettlement(c, "Outcome.Kind", finish(dedupstore.Outcome{Kind: "done"}))
			k.badSettlement(c, "Outcome.Exhausted",
				finish(dedupstore.Outcome{Kind: dedupstore.Succeeded, Exhausted: true}))
			k.badSettlement(c, "Outcome.Reason", finish(failed(reason)))
			k.badSettlement(c, "Outcome.Produced[1].ID",
				finishTo(succeeded(""), receipt, dedupstore.Produced{Topic: "t"}))
			k.badSettlement(c, "Release.Delay", dedupstore.Release{Delay: -1})
			k.badSettlement(c, "Release.Delay", dedupstore.Release{Delay: farthest + 1})
			k.badSettlement(c, "Release.Reason", dedupstore.Release{Reason: reason})
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Running)
			k.settle(c, finish(succeeded("paid")))
		},
	},
}

func (k *kit) badRequest(field, what string, spoil func(*dedupstore.Request)) {
	k.Helper()
	r := k.request("1")
	spoil(&r)
	_, err := dedupstore.ClaimOne(k.Context(), k.Store, r)
	k.invalid(err, field, what)
}

func (k *kit) badSettlement(c dedupstore.Claim, field string, s dedupstore.Settlement) {
	k.Helper()
	k.invalid(dedupstore.SettleOne(k.Context(), k.Store, c, s), field, "settle")
}

func (k *kit) invalid(err error, field, what string) {
	k.Helper()
	var invalid *dedupstore.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != field {
		k.Errorf("%s, bad %s: error is %v, want an InvalidError of that field", what, field, err)
	}
}
