package dedupstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// wantInvalid wants an InvalidError of the field whose problem contains the text.
func wantInvalid(t *testing.T, err error, field, problem string) {
	t.Helper()
	invalid, ok := errors.AsType[*dedupstore.InvalidError](err)
	if !ok || invalid.Field != field || !strings.Contains(invalid.Problem, problem) {
		t.Errorf("error is %v, want one of %s that says %q", err, field, problem)
	}
}

const longest = 100 * 365 * 24 * time.Hour

func TestRequest_ValidateNamesFieldAndValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		field, problem string
		spoil          func(r *dedupstore.Request)
	}{
		{"Key.Tenant", "is empty", func(r *dedupstore.Request) { r.Key.Tenant = "" }},
		{"Key.Group", "is 129 bytes long, the limit is 128",
			func(r *dedupstore.Request) { r.Key.Group = strings.Repeat("x", 129) }},
		{"Key.Handler", "is not valid UTF-8", func(r *dedupstore.Request) { r.Key.Handler = "\xff" }},
		{"Key.ID", `contains a control character: "a\x7f"`, func(r *dedupstore.Request) { r.Key.ID = "a\x7f" }},
		{"Key.ID", "is 513 bytes long, the limit is 512",
			func(r *dedupstore.Request) { r.Key.ID = strings.Repeat("é", 256) + "x" }},
		{"Request.Owner", "16 to 64", func(r *dedupstore.Request) { r.Owner = strings.Repeat("x", 15) }},
		{"Request.Owner", "16 to 64", func(r *dedupstore.Request) { r.Owner = strings.Repeat("x", 65) }},
		{"Request.Owner", "letters, digits", func(r *dedupstore.Request) { r.Owner = "sixteen letters." }},
		{"Request.Lease", "is 0s, want 1ms to", func(r *dedupstore.Request) { r.Lease = 0 }},
		{"Request.Lease", "is 999.999µs", func(r *dedupstore.Request) { r.Lease = time.Millisecond - 1 }},
		{"Request.Retention", "is -1s", func(r *dedupstore.Request) { r.Retention = -time.Second }},
		{"Request.Retention", "is 876000h0m0.000000001s", func(r *dedupstore.Request) { r.Retention = longest + 1 }},
		{"Request.Fingerprint.Scheme", `is "", want`, func(r *dedupstore.Request) { r.Fingerprint.Sum = "x" }},
		{"Request.Fingerprint.Scheme", `is "a:b", want`,
			func(r *dedupstore.Request) { r.Fingerprint = dedupstore.Fingerprint{Scheme: "a:b", Sum: "x"} }},
		{"Request.Fingerprint.Sum", `is "", want`, func(r *dedupstore.Request) { r.Fingerprint.Scheme = "x" }},
		{"Request.Fingerprint.Sum", `is "a.b", want`,
			func(r *dedupstore.Request) { r.Fingerprint = dedupstore.Fingerprint{Scheme: "x", Sum: "a.b"} }},
		{"Request.MaxAttempts", "is 0, want at least 1", func(r *dedupstore.Request) { r.MaxAttempts = 0 }},
		{"Request.Trace", "is 65 bytes long, the limit is 64",
			func(r *dedupstore.Request) { r.Trace = strings.Repeat("x", 65) }},
		{"Request.Trace", "control character", func(r *dedupstore.Request) { r.Trace = "a\nb" }},
	} {
		r := request("1")
		tc.spoil(&r)
		wantInvalid(t, r.Validate(), tc.field, tc.problem)
	}
}

func TestRequest_ValidateAcceptsTheLimits(t *testing.T) {
	t.Parallel()
	least := dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "t", Group: "g", Handler: "h", ID: "i"},
		Owner: strings.Repeat("o", 16), Lease: time.Millisecond, Retention: time.Millisecond, MaxAttempts: 1,
	}
	most := dedupstore.Request{
		Key: dedupstore.Key{
			Tenant: strings.Repeat("t", 128), Group: strings.Repeat("é", 64), Handler: strings.Repeat("\u2028", 42),
			ID: strings.Repeat("🦊", 128),
		},
		Owner: strings.Repeat("aZ0-_", 13)[:64], Lease: longest, Retention: longest, MaxAttempts: 1 << 30,
		Fingerprint: dedupstore.Fingerprint{Scheme: strings.Repeat("a-._", 16), Sum: strings.Repeat("A-_9", 32)},
		Trace:       strings.Repeat("t", 64),
	}
	for _, r := range []dedupstore.Request{least, most} {
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestClaim_ValidateNamesTheField(t *testing.T) {
	t.Parallel()
	good := dedupstore.Claim{Key: request("1").Key, Owner: "owner-of-the-claim", Fence: 1, Lease: time.Second,
		Retention: time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(c *dedupstore.Claim){
		"Key.Tenant":      func(c *dedupstore.Claim) { c.Key = dedupstore.Key{} },
		"Claim.Owner":     func(c *dedupstore.Claim) { c.Owner = "" },
		"Claim.Fence":     func(c *dedupstore.Claim) { c.Fence = 0 },
		"Claim.Lease":     func(c *dedupstore.Claim) { c.Lease = 0 },
		"Claim.Retention": func(c *dedupstore.Claim) { c.Retention = longest + 1 },
	} {
		c := good
		spoil(&c)
		wantInvalid(t, c.Validate(), field, "is ")
	}
}

func TestValidateSettlement_NamesFieldAndValue(t *testing.T) {
	t.Parallel()
	ok := dedupstore.Outcome{Kind: dedupstore.Succeeded}
	reason := strings.Repeat("x", dedupstore.MaxReason+1)
	for _, tc := range []struct {
		field, problem string
		s              dedupstore.Settlement
	}{
		{"Settlement", "is <nil>, want Finish, Release or Published", nil},
		{"Settlement", "is *dedupstore.Release", &dedupstore.Release{}},
		{"Outcome.Kind", `is ""`, dedupstore.Finish{Retention: time.Second}},
		{"Outcome.Kind", `is "ok"`, dedupstore.Finish{Retention: time.Second, Outcome: dedupstore.Outcome{Kind: "ok"}}},
		{"Outcome.Exhausted", "although Kind is unknown",
			dedupstore.Finish{Retention: time.Second,
				Outcome: dedupstore.Outcome{Kind: dedupstore.Unknown, Exhausted: true}}},
		{"Outcome.Reason", "is 1025 bytes long, the limit is 1024",
			dedupstore.Finish{Retention: time.Second,
				Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason}}},
		{"Outcome.Produced[1].ID", "is empty", dedupstore.Finish{Retention: time.Second,
			Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Produced: []dedupstore.Produced{{ID: "a"}, {}}}}},
		{"Finish.Retention", "is 0s", dedupstore.Finish{Outcome: ok}},
		{"Release.Delay", "is -1ns, want 0 to", dedupstore.Release{Delay: -1}},
		{"Release.Delay", "want 0 to", dedupstore.Release{Delay: longest + 1}},
		{"Release.Reason", "is 1025 bytes long", dedupstore.Release{Reason: reason}},
		{"Published.Retention", "is 0s", dedupstore.Published{}},
	} {
		wantInvalid(t, dedupstore.ValidateSettlement(tc.s), tc.field, tc.problem)
	}
	for _, s := range []dedupstore.Settlement{
		dedupstore.Finish{Outcome: ok, Retention: time.Millisecond},
		dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: reason[1:]},
			Retention: longest, Published: true},
		dedupstore.Release{}, dedupstore.Release{Delay: longest, Reason: reason[1:], Uncounted: true},
		dedupstore.Published{Retention: longest},
	} {
		if err := dedupstore.ValidateSettlement(s); err != nil {
			t.Error(err)
		}
	}
}
