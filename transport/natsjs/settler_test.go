package natsjs

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/oncemill/oncemill/consumer"
)

func TestSettler_DelayedNaksCountUntilTheirDelaysAreOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &settler{session: &session{limits: limits{maxInFlight: 2, delayed: 2}, draining: make(chan struct{})}}
		keep := func(delay time.Duration) bool { return s.keep(&message{}, consumer.Decision{}, delay) }
		if keep(time.Minute) || keep(time.Hour) || !keep(time.Minute) {
			t.Error("want two naks, and the third message kept")
		}
		time.Sleep(time.Minute + time.Second)
		if keep(time.Minute) {
			t.Error("a nak whose delay is over still counts")
		}
	})
}

func TestSettler_NothingOfARunOutlivesIt(t *testing.T) {
	t.Parallel()
	s := &settler{session: &session{limits: limits{maxInFlight: 2, delayed: 2}, draining: make(chan struct{})}}
	if s.keep(&message{}, consumer.Decision{}, 24*time.Hour) {
		t.Fatal("the message is kept here")
	}
	left := weak.Make(s)
	runtime.KeepAlive(s)
	runtime.GC()
	if left.Value() != nil {
		t.Error("a timer holds what a run had")
	}
}
