package kit

import "testing"

func TestAim_ALimitIsMissedAboveItAndMetUpToIt(t *testing.T) {
	t.Parallel()
	for x, want := range map[float64]string{699: "met", 700: "met", 700.1: "MISSED"} {
		if got := (aim{x: x, required: 700, most: true}).verdict(); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
}
