package leaktest

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestLeftAfter_FindsWhatDoesNotEnd(t *testing.T) { // not parallel: goroutines of other tests would be found
	end := make(chan struct{})
	go func() { <-end }()
	if left := leftAfter(0); !strings.Contains(strings.Join(left, ""), "TestLeftAfter_FindsWhatDoesNotEnd") {
		t.Errorf("found %q", left)
	}
	close(end)
	if left := leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("waited in vain for %q", left)
	}
}
