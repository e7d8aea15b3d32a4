package faults_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Full: the server stays full for 20 s, and 20,000 messages wait.
func TestRedis_AtMaxmemoryWhatRunsIsFinishedAndNothingIsBegun(t *testing.T) {
	t.Parallel()
	const running, lease = 20, 9 * time.Second
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
	r.progress(running - r.Done())

	limit("100kb") // the server needs more for itself
	r.publish(full(20_000, 200))
	renewed := r.Sum().Renewals + 4*running
	until(t, "leases to be extended beyond their first end", func() bool { return r.Sum().Renewals >= renewed })
	lasts(full(20*time.Second, 0))
	close(finish)
	until(t, "outcomes to be recorded", func() bool { return r.Ended(ledger.Recorded) == running })
	if n := r.Done(); n != running {
		t.Errorf("%d handlers ran without a claim", n-running)
	}
	refusals := 0
	for text, f := range r.Failures() {
		switch {
		case errors.Is(f.Err, dedupstore.ErrFull):
			refusals += f.Times
		case !errors.Is(f.Err, context.DeadlineExceeded): // the machine was slow
			t.Errorf("%d times a caller saw: %s", f.Times, text)
		}
	}
	if refusals == 0 {
		t.Error("no claim was refused because the server is full")
	}

	limit("0")
	r.finish().MustExplain(t)
	t.Logf("%d claims were refused", refusals)
}
