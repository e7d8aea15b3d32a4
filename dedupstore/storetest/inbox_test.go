package storetest

import (
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

func TestRunInbox_AcceptsAStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	RunInboxVirtual(t, func(*testing.T) InboxSubject { return newToyInbox("").subject() })
}

// brokenInboxes are rules, each with the cases that are there for it and must notice when a store breaks it.
var brokenInboxes = map[string][]string{
	"publisher-may-finish":                {"inbox/publish-step-is-taken-over", "inbox/not-the-publisher's"},
	"end-of-context-stops-the-commit":     {"inbox/context-that-ended-decides-once"},
	"one-transaction-at-once":             {"inbox/keys-in-parallel"},
	"settles-before-the-commit":           {"inbox/effect-and-outcome-are-one"},
	"settles-after-the-commit":            {"inbox/effect-and-outcome-are-one", "inbox/zombie-rolls-back"},
	"first-tells-another-fence":           {"first/effect-and-outcome-are-one"},
	"outputs-are-dropped":                 {"inbox/what-was-produced-commits-too", "first/what-was-produced-commits-too"},
	"headers-are-dropped":                 {"inbox/what-was-produced-commits-too"},
	"outcome-is-forgotten-after-a-second": {"inbox/outcome-is-kept-for-its-window"},
	"outcome-is-forgotten-at-once":        {"inbox/outcome-is-kept-for-its-window"},
	"outcome-is-kept-for-ever":            {"inbox/outcome-is-kept-for-its-window"},
	"claims-come-back":                    {"inbox/forgotten-outcome-leaves-nothing"},
	"all-outcomes-are-successes":          {"inbox/outcome-is-kept-whole"},
	"truncation-is-dropped":               {"inbox/outcome-is-kept-whole"},
	"published-is-ignored":                {"inbox/outcome-is-kept-whole"},
	"error-leaks-the-connection":          {"inbox/errors-free-the-connection"},
	"lost-claim-leaks-the-connection":     {"inbox/lost-claims-free-the-connection"},
	"lookup-ignores-the-owner":            {"inbox/another's-outcome-is-no-success"},
	"what-cannot-be-known-is-a-failure":   {"inbox/undecided-is-said"},
	"what-cannot-be-known-is-a-success":   {"inbox/undecided-is-said"},
	"finished-work-is-repeated": {"inbox/finished-work-is-not-repeated",
		"many/finished-batch-is-not-repeated"},
	"lease-is-checked-at-the-commit":          {"inbox/expiry-does-not-revoke"},
	"heartbeat-waits-for-the-transaction":     {"inbox/heartbeats-do-not-spoil-it"},
	"heartbeat-spoils-the-transaction":        {"inbox/heartbeats-do-not-spoil-it"},
	"accepts-any-settlement":                  {"inbox/only-a-finish-commits"},
	"release-commits":                         {"inbox/only-a-finish-commits"},
	"work-gets-a-context-of-its-own":          {"inbox/context-is-the-caller's"},
	"writes-after-the-end-are-committed":      {"inbox/transaction-ends-with-it"},
	"error-commits":                           {"inbox/error-rolls-back", "inbox/context-that-ends-rolls-back", "first/error-leaves-nothing"},
	"error-releases":                          {"inbox/error-rolls-back"},
	"error-fails":                             {"inbox/failure-is-settled-afterwards"},
	"error-is-wrapped":                        {"inbox/error-is-returned-itself"},
	"lost-claims-of-the-work-are-the-store's": {"inbox/error-is-returned-itself"},
	"panic-leaks-the-connection":              {"inbox/panic-rolls-back"},
	"panic-commits":                           {"inbox/panic-rolls-back"},
	"panic-becomes-nothing":                   {"inbox/panic-rolls-back"},
	"begins-after-the-end-of-the-context":     {"inbox/ended-context-begins-nothing"},
	"claims-not-validated":                    {"inbox/claims-are-validated"},
	"owner-ignored": {"inbox/owner-is-compared", "inbox/zombie-rolls-back",
		"inbox/taken-over-during-the-work", "inbox/one-of-many-owners-commits", "inbox/commit-against-takeover"},
	"fence-ignored": {"inbox/fence-is-compared"},
	"lost-claims-are-swallowed": {"inbox/zombie-rolls-back", "inbox/not-after-release",
		"inbox/not-the-publisher's"},
	"missing-record-is-fine":          {"inbox/no-record-is-lost"},
	"vanished-hosts-keep-their-locks": {"inbox/vanished-host-holds-nothing"},
	"twin-waits-for-the-transaction":  {"inbox/twin-is-busy-at-once"},
	"commit-locks-the-record":         {"inbox/twin-is-answered-until-the-commit"},
	"repeated-finish-commits":         {"inbox/one-owner-asking-at-once"},
	"conflicts-are-failures": {"inbox/conflicts-are-repeated", "first/conflicts-are-repeated",
		"many/conflicts-are-repeated"},
	"conflicts-keep-the-effects": {"inbox/conflicts-are-repeated", "inbox/conflicts-end"},
	"conflicts-never-end":        {"inbox/conflicts-end"},
	"aborted-is-a-success":       {"inbox/aborted-is-not-committed"},
	"lost-answer-is-a-failure":   {"inbox/lost-answer-is-looked-up", "many/lost-answer-is-looked-up"},
	"lost-commit-is-a-success":   {"inbox/lost-commit-is-no-success", "first/lost-answer-is-found-out"},
	"many-run-beside-others": {"first/many-are-without-what-is-known",
		"many/first-run-of-another-leaves-the-claimed-ones"},
	"many-of-nobody":              {"many/one-run-at-least"},
	"many-run-copies":             {"first/many-of-one-key-are-one"},
	"many-run-what-is-known":      {"first/many-are-without-what-is-known"},
	"many-settle-the-first-alone": {"first/many-commit-together", "many/commit-together"},
	"many-have-one-outcome":       {"many/commit-together", "many/what-was-produced-commits-too"},
	"many-commit-the-others":      {"many/error-rolls-all-back"},
	"many-accept-any-settlement":  {"many/one-finish-each"},
	"many-lost-claims-are-committed": {"many/one-lost-claim-rolls-all-back",
		"many/claim-that-is-lost-meanwhile-rolls-all-back", "many/settled-before-is-lost"},
	"first-holds-no-lock":       {"first/twin-is-busy-at-once", "first/one-of-many-runs"},
	"first-ends-with-its-lease": {"first/slow-run-keeps-the-key"},
	"first-runs-beside-records": {"first/records-are-answered"},
	"first-is-not-validated":    {"first/requests-are-validated"},
	"first-error-leaves-a-record": {"first/error-leaves-nothing",
		"first/many-leave-nothing-after-an-error", "many/first-runs-beside-claimed-ones"},
	"first-window-is-the-claim's": {"first/outcome-is-kept-for-its-window"},
}

func TestRunInbox_RejectsABrokenStore(t *testing.T) {
	t.Parallel()
	for rule, names := range brokenInboxes {
		for _, name := range names {
			t.Run("broken/"+rule+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := inboxNamed(t, name)
				synctest.Test(t, func(t *testing.T) {
					recorder.Record(t, func(tb testing.TB) { c.check(tb, newToyInbox(rule).subject()) }).WantRejected(name, c.why)
				})
			})
		}
	}
}

func inboxNamed(t *testing.T, name string) inboxCase {
	t.Helper()
	for _, c := range inboxCases {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no case %q", name)
	return inboxCase{}
}

func TestInboxCases_HaveNamesOfTheirOwnAndAReason(t *testing.T) {
	t.Parallel()
	seen, rejecting := map[string]bool{}, map[string]bool{}
	for _, names := range brokenInboxes {
		for _, name := range names {
			rejecting[name] = true
		}
	}
	for _, c := range inboxCases {
		if c.name == "" || c.why == "" || seen[c.name] {
			t.Errorf("case %q: why it exists: %q; seen before: %t", c.name, c.why, seen[c.name])
		}
		seen[c.name] = true
		if !rejecting[c.name] {
			t.Errorf("no store is rejected by %s", c.name)
		}
	}
}

func TestMemoryInbox_KeepsTheContract(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) *MemoryInbox {
		m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return NewMemoryInbox(m)
	}
	RunVirtual(t, func(t *testing.T) Subject { return Subject{Store: open(t)} })
	RunInboxVirtual(t, func(t *testing.T) InboxSubject {
		m := open(t)
		return InboxSubject{Inbox: m, Effect: m.Write, Effects: m.Count}
	})
}
