package stocknats

import "testing"

func TestGate_CountsWhatPassesAndNothingPassesAfterItsEnd(t *testing.T) {
	t.Parallel()
	g := &gate{}
	for range 2 {
		if !g.pass() {
			t.Fatal("an open gate is shut")
		}
	}
	if n := g.close(); n != 2 {
		t.Errorf("%d passed, want 2", n)
	}
	if g.pass() {
		t.Error("passed a shut gate")
	}
	if n := g.close(); n != 2 {
		t.Errorf("%d passed, want 2", n)
	}
}
