package dedupstore

import "testing"

func TestScope_OfAnyNamesIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, s := range []Scope{{"default", "payments", "settle"}, {"a:b", "c%3Ad", "{é} *?"}} {
		got, err := ParseScope(s.String())
		if err != nil || got != s {
			t.Errorf("%q: %+v, %v, want %+v", s.String(), got, err, s)
		}
	}
	for _, text := range []string{"", "a:b", "a:b:c:d", "a::c"} {
		if s, err := ParseScope(text); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
}
