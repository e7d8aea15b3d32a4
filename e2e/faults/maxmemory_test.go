package faults_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Full: the server stays full for 20 s, and 20,000 messages wait.
func TestRedis_AtMaxmemoryWhatRunsIsFinishedAndNothingIsBegun(t *testing.T) {
	t.Parallel()
	const running, lease = 20, 3 * time.Second
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	admin := server.Client()
	limit := func(bytes string) {
		if err := admin.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	finish := make(chan struct{})
	r := newRig(t, client(t, server.Addr), setup{lease: lease, work: func(ctx context.Context, run oncemill.Run) {
		select {
		case <-finish:
		case <-ctx.Done():
			t.Errorf("%s lost its claim", run.Key)
		}
	}})
	r.publish(running)
	r.progress(running - r.done())

	limit("100kb") // the server needs more for itself
	r.publish(full(20_000, 200))
	renewed := 0
	r.look(func() { renewed = r.renewals + 4*running })
	until(t, "leases to be extended beyond their first end", func() (met bool) {
		r.look(func() { met = r.renewals >= renewed })
		return met
	})
	lasts(full(20*time.Second, 0))
	close(finish)
	until(t, "outcomes to be recorded", func() bool { return r.ended(recorded) == running })
	if n := r.done(); n != running {
		t.Errorf("%d handlers ran without a claim", n-running)
	}
	refusals := 0
	r.look(func() {
		for text, f := range r.failures {
			switch {
			case errors.Is(f.err, dedupstore.ErrFull):
				refusals += f.times
			case !errors.Is(f.err, context.DeadlineExceeded): // the machine was slow
				t.Errorf("%d times a caller saw: %s", f.times, text)
			}
		}
	})
	if refusals == 0 {
		t.Error("no claim was refused because the server is full")
	}

	limit("0")
	r.finish().mustExplain(t)
	t.Logf("%d claims were refused", refusals)
}
