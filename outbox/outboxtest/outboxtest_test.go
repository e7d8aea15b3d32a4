package outboxtest

import (
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/internal/recorder"
)

func TestRun_AcceptsAStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	RunVirtual(t, func(*testing.T) Subject { return newToy("").subject() })
}

// A machine may be so slow that short leases and delays end between any two operations.
func TestRun_AcceptsASlowStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	RunVirtual(t, func(*testing.T) Subject { return newToy("slow").subject() })
}

// broken are rules, each with the case that is there for it and must notice when a store breaks it.
var broken = map[string]string{
	"rollback-commits":             "write/published-if-and-only-if-committed",
	"visible-before-commit":        "write/late-commit-is-not-skipped",
	"by-position":                  "write/late-commit-is-not-skipped",
	"payload-is-text":              "write/comes-back-as-it-was",
	"empty-payload-is-nil":         "write/comes-back-as-it-was",
	"header-names-are-folded":      "write/comes-back-as-it-was",
	"same-message-twice":           "write/same-message-is-one-row",
	"copies-are-one":               "write/other-topics-and-copies-are-other-rows",
	"conflict-in-silence":          "write/same-ID-with-other-content-is-a-conflict",
	"conflict-of-keys-in-silence":  "write/same-ID-with-other-content-is-a-conflict",
	"refused-call-writes-a-part":   "write/refused-message-writes-nothing",
	"keys-are-any-bytes":           "write/refused-message-writes-nothing",
	"far-delays-wrap":              "write/delays-that-times-cannot-hold-are-refused",
	"missing-IDs-are-one":          "write/missing-IDs-are-minted",
	"stamps-the-callers-header":    "write/missing-IDs-are-minted",
	"calls-are-cut":                "write/many-in-one-call",
	"writes-after-the-commit":      "write/in-an-ended-transaction-is-an-error",
	"copies-look-alike":            "write/copies-that-only-look-alike-are-two-rows",
	"resend-is-copied":             "write/message-is-no-resend-of-another",
	"unreadable-row-looks-fine":    "lease/unreadable-row-blocks-nobody",
	"delayed-rows-are-late":        "inspect/delayed-rows-are-not-late",
	"revived-keeps-its-header":     "inspect/written-again-revives",
	"wake-is-lost":                 "relay/is-woken",
	"delay-ignored":                "write/not-before-its-time",
	"leases-are-shared":            "lease/each-row-to-one-at-a-time",
	"limit-ignored":                "lease/at-most-the-limit",
	"newest-first":                 "lease/longest-due-first",
	"given-back-counts":            "lease/given-back-is-due-at-once",
	"given-back-waits":             "lease/given-back-is-due-at-once",
	"ended-lease-is-not-counted":   "lease/that-ended-counts-an-unknown",
	"lease-ends-early":             "lease/lasts-as-long-as-asked",
	"delay-ends-early":             "lease/lasts-as-long-as-asked",
	"lease-never-ends":             "lease/that-ended-counts-an-unknown",
	"suspects-among-the-others":    "lease/suspects-apart",
	"published-comes-again":        "settle/acknowledged-is-not-handed-out-again",
	"removed-is-remembered":        "settle/acknowledged-is-not-handed-out-again",
	"delay-of-a-retry-ignored":     "settle/refused-comes-again-after-its-delay",
	"unknown-is-a-failure":         "settle/unanswered-comes-again-after-its-delay",
	"dead-rows-come-again":         "settle/dead-is-not-handed-out",
	"token-ignored":                "settle/stale-token-changes-nothing",
	"ended-lease-is-lost":          "settle/ended-lease-holds-until-somebody-takes-it",
	"unknown-state-is-skipped":     "settle/unknown-state-is-an-error-and-changes-nothing",
	"clean-takes-all":              "clean/old-published-rows-only",
	"clean-is-unbounded":           "clean/old-published-rows-only",
	"leased-rows-are-not-counted":  "inspect/counts",
	"delayed-rows-are-not-counted": "inspect/counts",
	"dead-without-a-reason":        "inspect/dead-rows-tell-why",
	"lists-all-states":             "inspect/lists-what-was-asked-for",
	"lists-all-topics":             "inspect/lists-what-was-asked-for",
	"lists-all-IDs":                "inspect/lists-what-was-asked-for",
	"lists-all-times":              "inspect/lists-what-was-asked-for",
	"leased-rows-look-free":        "inspect/lists-what-was-asked-for",
	"delayed-rows-look-due":        "inspect/lists-what-was-asked-for",
	"headers-unasked":              "inspect/lists-what-was-asked-for",
	"list-is-one-page":             "inspect/lists-many-in-pages",
	"pages-lose-a-row":             "inspect/lists-many-in-pages",
	"count-mixes-topics":           "inspect/counts-by-topic",
	"filter-is-not-checked":        "inspect/filter-is-checked",
	"replay-of-all-headers":        "replay/only-with-the-headers",
	"requeued-keeps-its-count":     "inspect/requeued-is-pending-again",
	"discards-the-living":          "inspect/discarded-is-gone",
	"takes-other-topics":           "inspect/only-what-was-shown",
	"takes-what-died-again":        "inspect/only-what-was-shown",
	"dead-stays-dead":              "inspect/written-again-revives",
	"revived-before-commit":        "inspect/revived-if-and-only-if-committed",
	"replay-is-no-copy":            "replay/published-comes-again-as-a-copy",
	"replays-the-dead":             "replay/published-comes-again-as-a-copy",
	"replay-without-end":           "replay/only-what-was-asked-for",
	"replay-without-beginning":     "replay/only-what-was-asked-for",
	"replay-of-all-topics":         "replay/only-what-was-asked-for",
	"replay-is-not-checked":        "replay/request-is-checked",
	"lanes-shuffled":               "order/rows-of-a-lane-come-in-theirs",
	"lanes-shared":                 "order/one-lease-a-lane",
	"refused-rows-are-passed":      "order/nothing-passes-a-refused-row",
	"suspects-are-passed":          "order/nothing-passes-a-suspect",
	"leased-suspects-are-passed":   "order/nothing-passes-a-suspect",
	"delayed-rows-are-passed":      "order/nothing-passes-a-delayed-row",
	"ended-lease-frees-its-lane":   "order/suspects-keep-it-too",
	"suspects-pass-each-other":     "order/suspects-keep-it-too",
	"suspects-pass-the-dead":       "order/suspects-keep-it-too",
	"dead-rows-block-nobody":       "order/a-dead-row-blocks-its-lane-only",
	"a-lane-stands-still":          "order/settled-rows-let-the-lane-go-on",
	"ignores-the-context":          "context/ended-is-an-error",
	"repeated-write-blocks-all":    "write/repeated-blocks-no-others",
	"removed-row-blocks-all":       "write/repeated-after-removal-blocks-no-others",
	"late-answer-is-waited-for":    "link/late-answer-holds-up-nobody",
	"late-answer-blocks-all":       "link/late-answer-holds-up-nobody",
	"vanished-host-keeps-its-rows": "link/vanished-host-keeps-no-rows",
}

// Rules whose breach more cases are there for.
var brokenToo = []struct{ rule, name string }{
	{"token-ignored", "settle/repeated-changes-nothing"},
	{"token-ignored", "order/stale-token-changes-nothing"},
	{"leases-are-shared", "concurrency/each-row-once"},
	{"given-back-counts", "settle/rest-is-given-back"},
	{"visible-before-commit", "write/every-order-of-three-transactions"},
	{"rollback-commits", "write/every-order-of-three-transactions"},
	{"rollback-commits", "relay/committed-is-published-once"},
	{"leases-are-shared", "relay/several-publish-each-row-once"},
	{"dead-without-a-reason", "relay/poison-is-parked-and-others-flow"},
	{"lease-never-ends", "relay/that-dies-before-it-settles-loses-nothing"},
	{"given-back-counts", "relay/that-stops-gives-back-what-hangs"},
	{"given-back-waits", "relay/that-stops-gives-back-what-hangs"},
	{"clean-takes-all", "relay/keeps-rows-for-the-retention"},
}

func TestRun_RejectsABrokenStore(t *testing.T) {
	t.Parallel()
	for rule, name := range broken {
		t.Run("broken/"+rule, func(t *testing.T) {
			t.Parallel()
			rejects(t, name, rule)
		})
	}
	for _, b := range brokenToo {
		t.Run("broken/"+b.rule+"/"+b.name, func(t *testing.T) {
			t.Parallel()
			rejects(t, b.name, b.rule)
		})
	}
}

// rejects wants the case to reject a store that breaks the rule, and to say why.
func rejects(t *testing.T, name, rule string) {
	t.Helper()
	for _, c := range cases {
		if c.name != name {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			recorder.Record(t, func(tb testing.TB) { c.check(tb, newToy(rule).subject()) }).WantRejected(name, c.why)
		})
		return
	}
	t.Fatalf("there is no case %q", name)
}

// Every case but those named rejects some broken store.
func TestCases_HaveNamesOfTheirOwnAReasonAndABrokenStore(t *testing.T) {
	t.Parallel()
	rejecting := map[string]bool{
		"lease/writers-are-not-blocked": true, // a toy has no locks to hold
	}
	for _, name := range broken {
		rejecting[name] = true
	}
	for _, b := range brokenToo {
		rejecting[b.name] = true
	}
	seen := map[string]bool{}
	for _, c := range cases {
		if c.name == "" || c.why == "" || seen[c.name] || !rejecting[c.name] {
			t.Errorf("case %q: why it exists: %q; seen before: %t; rejects a broken store: %t", c.name, c.why, seen[c.name], rejecting[c.name])
		}
		seen[c.name] = true
	}
}
