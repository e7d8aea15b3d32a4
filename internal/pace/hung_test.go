package pace_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

func TestHung_ForgetsATopicAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung pace.Hung
		if !hung.None() || hung.Has("a") {
			t.Error("a topic hangs before anything was noted")
		}
		if !hung.Note("a") || hung.Note("a") {
			t.Error("a topic is news once")
		}
		if hung.None() || !hung.Has("a") || hung.Has("b") {
			t.Error("want a, and nothing else")
		}
		time.Sleep(11 * time.Minute)
		if hung.Has("a") || !hung.None() {
			t.Error("the topic is still known")
		}
	})
}

func TestHung_MemoryIsBounded(t *testing.T) {
	var hung pace.Hung
	for i := range 1001 {
		hung.Note(strconv.Itoa(i))
	}
	if hung.Has("0") || !hung.Has("1000") {
		t.Error("want all forgotten but the last")
	}
}
