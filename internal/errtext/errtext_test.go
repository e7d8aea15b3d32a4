package errtext_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/oncemill/oncemill/internal/errtext"
)

func TestOf_TextThatEveryStoreTakes(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"short":      {"no room", "no room"},
		"not UTF-8":  {"a\xffb", "a\uFFFDb"},
		"zero bytes": {"a\x00b", "a\uFFFDb"},
	} {
		if got := errtext.Of(errors.New(c.in)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	long := errtext.Of(errors.New(strings.Repeat("ä", 2000)))
	if len(long) > 1024 || !utf8.ValidString(long) || !strings.HasSuffix(long, "… (4000 bytes)") {
		t.Errorf("a long one is %d bytes and ends with %q", len(long), long[len(long)-20:])
	}
}
