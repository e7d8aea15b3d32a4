package ids_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/oncemill/oncemill/internal/ids"
)

// Derived IDs are stored and sent: these values must never change.
func TestDerive_NeverChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		namespace string
		parts     []string
		want      string
	}{
		{"", nil, "af5570f5-a181-8b7a-b78c-af4bc70a660f"},
		{"orders", []string{"4711"}, "ab4edd01-2d39-858d-9fb3-3f3add5c119f"},
		{"orders", []string{"47", "11"}, "d09e137d-0162-84d5-9cb5-1756a2db8215"},
		{"oncemill/output", []string{"default", "billing", "charge", "o1", "receipts", "index", "0"}, "e8ef0fd9-c001-82b8-897b-593b894e5487"},
		{"ünïcode", []string{"", "\x00"}, "42b9d4c3-a304-8584-a519-d10c2c8f54a4"},
	} {
		if got := ids.Derive(tc.namespace, tc.parts...); got != tc.want {
			t.Errorf("Derive(%q, %q) = %s, want %s", tc.namespace, tc.parts, got, tc.want)
		}
	}
}

func TestDerive_PartsDoNotRunTogether(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, args := range [][]string{
		{"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"", "abc"}, {"abc", ""}, {"abc", "", ""},
		{"a", "\x00\x00\x00\x00\x00\x00\x00\x01b"},
	} {
		id := ids.Derive(args[0], args[1:]...)
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q have one ID, %s", args, other, id)
		}
		seen[id] = args
		if u := uuid.MustParse(id); u.Version() != 8 || u.Variant() != uuid.RFC4122 {
			t.Errorf("%s is version %d, variant %v, want a UUIDv8 of RFC 9562", id, u.Version(), u.Variant())
		}
	}
}

func TestNew_IsUniqueAndOrderedInTime(t *testing.T) {
	t.Parallel()
	made := make([]string, 1000)
	for i := range made {
		made[i] = ids.New()
		if v := uuid.MustParse(made[i]).Version(); v != 7 {
			t.Fatalf("%s is version %d, want 7", made[i], v)
		}
	}
	if !slices.IsSorted(made) {
		t.Error("IDs of one process are not in the order in which they were made")
	}
	if n := len(slices.Compact(made)); n != 1000 {
		t.Errorf("%d different IDs of 1000", n)
	}
}

func TestToken_IsWhatStoresAccept(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[A-Za-z0-9_-]{16}$`)
	seen := map[string]bool{}
	for range 1000 {
		token := ids.Token()
		if !form.MatchString(token) {
			t.Fatalf("token %q, want 16 characters of base64url", token)
		}
		seen[token] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different tokens of 1000", len(seen))
	}
}

func TestTime(t *testing.T) {
	const id = "0198c5b0-5b3c-7c0e-8f00-000000000000"
	if got := ids.Time(id); !bytes.Equal(got, []byte{0x01, 0x98, 0xc5, 0xb0, 0x5b, 0x3c}) {
		t.Errorf("the time of %s is %x", id, got)
	}
	for _, other := range []string{"", "order-17", ids.Derive("a", "b"), strings.ToUpper(id), "{" + id + "}"} {
		if got := ids.Time(other); got != nil {
			t.Errorf("%q has the time %x", other, got)
		}
	}
}

func BenchmarkDerive(b *testing.B) {
	for b.Loop() {
		ids.Derive("oncemill/output", "default", "billing", "charge", "0198c5b0-5b3c-7c0e-8f00-000000000000", "receipts", "index", "0")
	}
}
