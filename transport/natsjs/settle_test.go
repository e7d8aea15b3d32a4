package natsjs

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/oncemill/oncemill/consumer"
)

func TestKeeper_DelayedNaksCountUntilTheirDelaysAreOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{most: 1, naks: 2}
		keep := func(delay time.Duration) bool { return k.keep(&message{}, consumer.Decision{}, delay) }
		if keep(time.Minute) || keep(time.Hour) || !keep(time.Minute) {
			t.Error("want two naks, and the third message kept")
		}
		time.Sleep(time.Minute + time.Second)
		if keep(time.Minute) {
			t.Error("a nak whose delay is over still counts")
		}
	})
}

func TestKeeper_NothingOfARunOutlivesIt(t *testing.T) {
	t.Parallel()
	k := &keeper{most: 1, naks: 2}
	if k.keep(&message{}, consumer.Decision{}, 24*time.Hour) {
		t.Fatal("the message is kept here")
	}
	left := weak.Make(k)
	runtime.KeepAlive(k)
	runtime.GC()
	if left.Value() != nil {
		t.Error("a timer holds what a run had")
	}
}
