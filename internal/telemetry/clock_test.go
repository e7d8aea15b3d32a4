package telemetry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/telemetry"
)

func TestMoment_TellsVirtualTime(t *testing.T) {
	t.Parallel()
	if now := telemetry.Now(); now.Elapsed() < 0 || now.Elapsed() > time.Minute {
		t.Errorf("now was %v ago", now.Elapsed())
	}
	synctest.Test(t, func(t *testing.T) {
		began := telemetry.Now()
		<-time.After(1500 * time.Millisecond)
		if got := began.Elapsed(); got != 1500*time.Millisecond {
			t.Errorf("1.5 s took %v", got)
		}
	})
}
