package faults_test

import (
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Full: for 30 seconds.
func TestRedis_FlushedScriptsAreNoticedByNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	r := newRig(t, client(t, server.Addr), setup{rate: 1000})
	admin, flushes := server.Client(), 0
	end := make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
				t.Error(err)
				return
			}
			flushes++
		}
	})
	lasts(full(30*time.Second, 4*time.Second))
	close(end)
	flushing.Wait()
	r.finish().MustExplain(t)
	t.Logf("%d flushes", flushes)
	for text, f := range r.Failures() {
		t.Errorf("%d times a caller saw: %s", f.Times, text)
	}
	if flushes < full(200, 5) {
		t.Errorf("there were %d flushes only", flushes)
	}
}
