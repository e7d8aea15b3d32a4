package natswire

import "testing"

func TestOverlaps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.b", "a.b.c", false}, {"a.*", "a.b", true}, {"a.>", "a", false},
		{"a.>", "a.b.c", true}, {">", "x", true}, {"*.b", "a.*", true}, {"*.b", "a.c", false}, {"a.*.c", "a.>", true},
		{"a.b.>", "a.*", false}, {"$JS.x", "$JS.>", true},
	} {
		if got := Overlaps(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
		if got := Overlaps(c.b, c.a); got != c.want {
			t.Errorf("%s and %s: %v", c.b, c.a, got)
		}
	}
}

// A batch is another one if it has other messages, or in another order. One of one message has that one's ID.
func TestBatchID(t *testing.T) {
	t.Parallel()
	if got := BatchID([]string{"a"}); got != "a" {
		t.Errorf("one message: %s", got)
	}
	seen := map[string]bool{}
	for _, ids := range [][]string{{"a", "b"}, {"b", "a"}, {"a", "b", "c"}, {"ab", "c"}, {"a", "bc"}, {"a"}} {
		if id := BatchID(ids); seen[id] {
			t.Errorf("%q has the ID of another batch", ids)
		} else {
			seen[id] = true
		}
	}
}
