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

func TestHung_ForgetsATopicThatAnswersAgainSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung pace.Hung
		hung.Note("a")
		time.Sleep(time.Minute)
		hung.Answered("a") // a part of it may hang
		if !hung.Has("a") {
			t.Error("the topic is forgotten although it got no answer a minute ago")
		}
		time.Sleep(2 * time.Minute)
		hung.Answered("b")
		if !hung.Has("a") {
			t.Error("the topic is forgotten without an answer")
		}
		hung.Answered("a")
		if hung.Has("a") {
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
