package headers_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/headers"
)

func TestPortable_IsWhatEveryBrokerCarries(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"color": "blue", "X-Key": "", "a!b": "two words"} {
		if !headers.Portable(name, value) {
			t.Errorf("%q: %q is refused", name, value)
		}
	}
	for name, value := range map[string]string{"": "x", "a:b": "x", "a b": "x", "é": "x", "cr": "a\rb", "space": " a", "bytes": "\xff"} {
		if headers.Portable(name, value) {
			t.Errorf("%q: %q passes", name, value)
		}
	}
	if !headers.Order("NATS-Msg-Id") || headers.Order("nats") {
		t.Error("orders to the NATS server are not told apart")
	}
}

func TestText_IsOneLineWithinItsBound(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{" a\nb ": "a b", "\xff": "\uFFFD", "abcdefgh": "abcdef", "abcdeé": "abcde", "abcde fg": "abcde"} {
		if got := headers.Text(in, 6); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestScope_NamesWithSlashesStayApart(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, want := range [][3]string{
		{"default", "a", "b/h"}, {"default", "a/b", "h"}, {"default/a", "b", "h"}, {"default", "a%2Fb", "h"},
		{"default", "a%", "h"},
	} {
		scope := headers.Scope(want[0], want[1], want[2])
		tenant, group, handler, ok := headers.SplitScope(scope)
		if got := [3]string{tenant, group, handler}; !ok || got != want || seen[scope] {
			t.Errorf("%q was read from %q, want %q; seen before: %t", got, scope, want, seen[scope])
		}
		seen[scope] = true
	}
	if scope := headers.Scope("default", "billing", "charge"); scope != "default/billing/charge" {
		t.Errorf("plain names became %q", scope)
	}
	for _, odd := range []string{"", "a/b", "a/b/c/d"} {
		if _, _, _, ok := headers.SplitScope(odd); ok {
			t.Errorf("%q was taken for a scope", odd)
		}
	}
}
