package storetest

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

func TestRun_AcceptsAStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	RunVirtual(t, func(*testing.T) Subject {
		s := newToy("")
		return Subject{Store: s, TTL: s.TTL}
	})
}

// broken are rules, each with the case that is there for it and must notice when a store breaks it.
var broken = map[string]string{
	"mark-before-process":                 "claim/no-outcome-before-the-end",
	"owner-ignored-at-finish":             "finish/owner-is-compared",
	"owner-ignored-at-release":            "release/owner-is-compared",
	"owner-ignored-at-extend":             "extend/owner-is-compared",
	"owner-ignored-at-published":          "publish/owner-is-compared",
	"settle-ignores-fence":                "finish/fence-is-compared",
	"extend-ignores-fence":                "release/zombie-whose-token-came-back",
	"check-then-set":                      "concurrency/one-run-of-many-claimers",
	"lease-erases-the-fence":              "expiry/lease-does-not-erase-the-record",
	"no-ttl":                              "expiry/forgotten-after-the-window",
	"retention-without-the-lease":         "expiry/retention-follows-lease-and-delay",
	"retention-without-the-delay":         "expiry/retention-follows-lease-and-delay",
	"extend-forgets-the-ttl":              "expiry/retention-follows-lease-and-delay",
	"publish-step-forgets-the-ttl":        "expiry/retention-follows-lease-and-delay",
	"window-counted-from-the-claim":       "expiry/window-is-counted-from-the-end",
	"window-is-the-claim's":               "expiry/window-is-the-settlement's",
	"expiry-revokes":                      "expiry/does-not-revoke",
	"crashes-not-counted":                 "expiry/takeover-runs-again",
	"release-forgets-attempts":            "release/attempts-are-remembered",
	"release-forgets-the-delay":           "release/not-due-is-busy",
	"release-reopens-an-outcome":          "release/does-not-reopen-an-outcome",
	"returned-attempts-are-forgotten":     "release/uncounted-gives-the-attempt-back",
	"release-forgets-returned":            "release/returned-attempts-are-remembered",
	"published-replaces-what":             "publish/what-the-run-produced-stays",
	"published-forgets-what":              "exhaustion/dead-letter-is-remembered",
	"uncounted-counts":                    "release/uncounted-gives-the-attempt-back",
	"a-repeated-release-is-refused":       "release/repeated-is-ok",
	"a-repeated-release-counts-twice":     "release/repeated-is-ok",
	"a-repeated-release-delays-again":     "release/repeated-is-ok",
	"a-repeated-finish-is-refused":        "finish/repeated-is-ok",
	"a-repeated-finish-renews-the-window": "finish/repeated-changes-nothing",
	"second-finish-decides":               "finish/decides-once",
	"settle-starts-a-record":              "finish/no-record-is-lost",
	"outcome-is-shared":                   "finish/outcome-is-copied",
	"a-re-sent-claim-answers-busy":        "claim/resent-claim-gets-the-same-answer",
	"a-re-sent-claim-takes-an-attempt":    "claim/resent-claim-gets-the-same-answer",
	"a-re-sent-claim-renews-the-lease":    "claim/resent-claim-changes-nothing",
	"a-re-sent-claim-shortens-the-window": "claim/resent-claim-changes-nothing",
	"attempts-before-owner":               "claim/resent-claim-comes-before-attempts-and-parking",
	"a-late-claim-copy-takes-an-attempt":  "claim/late-copy-after-release",
	"a-late-claim-copy-takes-over":        "claim/late-copy-under-another-owner",
	"only-the-last-settler-is-known":      "claim/late-copy-of-an-earlier-settler",
	"fence-without-a-clock":               "claim/fence-grows-after-a-lost-record",
	"keys-that-collide":                   "keys/never-collide",
	"keys-without-the-handler":            "keys/handlers-of-one-group",
	"attempts-never-spent":                "exhaustion/one-claimer-gets-the-dead-letter",
	"exhausted-without-an-owner":          "exhaustion/one-claimer-gets-the-dead-letter",
	"exhausted-for-everybody":             "concurrency/one-dead-letter",
	"parks-what-never-started":            "parking/unstarted-run-is-retaken",
	"withheld-is-done":                    "publish/withheld-is-made-again",
	"publish-without-a-lease":             "publish/live-lease-is-busy",
	"publish-lease-is-the-run's":          "publish/lease-begins-with-the-finish",
	"publishing-runs-again":               "publish/does-not-run-again",
	"publish-takeover-decides-anew":       "rerun/fence-is-the-decision's",
	"published-without-an-outcome":        "publish/not-before-the-finish",
	"done-before-published":               "publish/takeover-gets-the-same-messages",
	"done-keeps-no-ids":                   "publish/done-keeps-IDs",
	"done-keeps-the-bytes":                "publish/done-keeps-IDs",
	"extend-starts":                       "parking/extended-but-not-started-is-retaken",
	"extend-forgets-the-start":            "parking/started-stays-started",
	"extend-never-starts":                 "parking/started-run-is-parked",
	"extend-never-shortens":               "extend/may-shorten",
	"extend-forgets-the-result":           "extend/renews-the-publish-step",
	"extend-forgets-the-messages":         "extend/renews-the-publish-step",
	"rerun-of-a-success":                  "rerun/success-never-runs-again",
	"rerun-of-any-fence":                  "rerun/names-the-fence",
	"rerun-keeps-attempts":                "rerun/failure-runs-again-once",
	"rerun-keeps-returned":                "rerun/interruptions-start-anew",
	"rerun-forgets-the-content":           "rerun/content-is-remembered",
	"rerun-keeps-the-ttl":                 "expiry/takeover-renews-the-window",
	"publish-takeover-keeps-the-ttl":      "expiry/takeover-renews-the-window",
	"run-takeover-keeps-the-ttl":          "expiry/takeover-renews-the-window",
	"busy-sets-the-ttl":                   "expiry/asking-does-not-shorten-the-window",
	"done-sets-the-ttl":                   "expiry/asking-does-not-shorten-the-window",
	"a-re-sent-claim-sets-the-ttl":        "expiry/asking-does-not-shorten-the-window",
	"crashes-in-a-row-not-counted":        "crashes/takeover-raises",
	"suspect-loses-its-owner":             "crashes/refusal-changes-nothing",
	"suspect-is-counted-again":            "crashes/refusal-changes-nothing",
	"uncounted-release-clears-crashes":    "crashes/uncounted-release-keeps",
	"release-keeps-crashes":               "crashes/end-clears",
	"rerun-keeps-crashes":                 "crashes/rerun-clears",
	"suspect-before-owner":                "crashes/repeated-claim-tells-the-same",
	"suspect-before-its-end":              "crashes/end-comes-first",
	"old-exhausted-stays":                 "rerun/leaves-nothing-of-the-old-outcome",
	"old-reason-stays":                    "rerun/leaves-nothing-of-the-old-outcome",
	"old-result-stays":                    "rerun/leaves-nothing-of-the-old-outcome",
	"old-truncated-stays":                 "rerun/leaves-nothing-of-the-old-outcome",
	"old-produced-stays":                  "rerun/leaves-nothing-of-the-old-outcome",
	"publisher-may-finish":                "finish/outcome-is-not-the-publisher's",
	"mismatch-touches-the-record":         "mismatch/does-not-touch-the-record",
	"mismatch-renews-the-window":          "mismatch/does-not-renew-the-window",
	"schemes-compared":                    "mismatch/other-schemes-are-not-compared",
	"content-not-compared":                "mismatch/in-every-state",
	"ignores-the-context":                 "context/ended-is-an-error",
	"empty-payloads-become-nil":           "limits/nothing-is-not-something",
	"nil-payloads-become-empty":           "limits/nothing-is-not-something",
	"accepts-anything":                    "validation/claim",
	"accepts-any-settlement":              "validation/extend-and-settle",
	"renewals-starve":                     "concurrency/duplicates-beside-renewals",
}

func TestRun_RejectsABrokenStore(t *testing.T) {
	t.Parallel()
	rules := maps.Clone(broken)
	maps.Copy(rules, brokenBatches)
	for rule, name := range rules {
		t.Run("broken/"+rule, func(t *testing.T) {
			t.Parallel()
			rejects(t, name, rule, func(s *toy) Subject { return Subject{Store: s} })
		})
	}
}

func TestRun_RejectsAStoreThatTellsAWrongTTL(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{
		"no-ttl", "lease-erases-the-fence", "retention-without-the-lease", "retention-without-the-delay",
		"extend-forgets-the-ttl", "window-is-the-claim's", "rerun-keeps-the-ttl", "publish-takeover-keeps-the-ttl",
		"run-takeover-keeps-the-ttl",
	} {
		t.Run("broken/"+rule, func(t *testing.T) {
			t.Parallel()
			rejects(t, "expiry/every-record-has-a-TTL", rule,
				func(s *toy) Subject { return Subject{Store: s, TTL: s.TTL} })
		})
	}
}

func TestRun_RejectsAStoreWhoseWindowsGrowByAsking(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{"busy-sets-the-ttl", "done-sets-the-ttl", "a-re-sent-claim-sets-the-ttl"} {
		t.Run("broken/"+rule, func(t *testing.T) {
			t.Parallel()
			rejects(t, "expiry/asking-does-not-prolong-the-window", rule,
				func(s *toy) Subject { return Subject{Store: s} })
		})
	}
}

// rejects wants the case to reject a store that breaks the rule, and to say why.
func rejects(t *testing.T, name, rule string, subject func(*toy) Subject) {
	t.Helper()
	c := named(t, name)
	synctest.Test(t, func(t *testing.T) {
		recorder.Record(t, func(tb testing.TB) { c.check(tb, subject(newToy(rule))) }).WantRejected(name, c.why)
	})
}

func named(t *testing.T, name string) testCase {
	t.Helper()
	for _, c := range cases {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no case %q", name)
	return testCase{}
}

func TestCases_HaveNamesOfTheirOwnAndAReason(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range cases {
		if c.name == "" || c.why == "" || seen[c.name] {
			t.Errorf("case %q: why it exists: %q; seen before: %t", c.name, c.why, seen[c.name])
		}
		seen[c.name] = true
	}
}

func BenchmarkToy(b *testing.B) {
	Benchmarks(b, func(*testing.B) dedupstore.Store { return newToy("") })
}
