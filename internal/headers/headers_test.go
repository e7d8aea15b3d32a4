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
