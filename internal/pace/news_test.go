package pace_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

func TestNews_OnceAMinuteUnlessTheReasonChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var news pace.News
		said := 0
		for range 120 {
			for _, line := range []string{"reading failed", "writing failed"} { // lines by turns do not renew each other
				if news.Is(line, "away") {
					said++
				}
			}
			time.Sleep(time.Second)
		}
		if said != 4 {
			t.Errorf("%d lines in two minutes, want 2 of each", said)
		}
		if !news.Is("reading failed", "other") || news.Is("reading failed", "other") {
			t.Error("another reason is said once, at once")
		}
	})
}
