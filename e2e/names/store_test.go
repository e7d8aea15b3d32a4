package names_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

func TestClaimTook_NamesTheStoreAndTheFailure(t *testing.T) {
	t.Parallel()
	for want, store := range map[string]any{"memory": &dedupstore.Memory{}, "other": errors.New("x")} {
		b := newBench()
		m, err := telemetry.NewMeter(b.Providers, store)
		if err != nil {
			t.Fatal(err)
		}
		m.ClaimTook(t.Context(), telemetry.Claimed, "", time.Millisecond)
		m.ClaimTook(t.Context(), telemetry.StoreError, telemetry.StoreFailure(context.DeadlineExceeded), time.Second)
		if got := b.points(t, "oncemill.claim.duration", "oncemill.store"); len(got) != 1 || got[want] != 2 {
			t.Errorf("durations by store: %v, want two of %q", got, want)
		}
		if got := b.points(t, "oncemill.claim.duration", "error.type"); got["timeout"] != 1 || got[""] != 1 {
			t.Errorf("durations by error: %v", got)
		}
	}
}

func TestStoreError_NamesThePolicy(t *testing.T) {
	t.Parallel()
	b := newBench()
	m := b.meter(t)
	for _, policy := range []string{"closed", "open", "shadow"} {
		m.StoreError(t.Context(), "claim", policy, telemetry.StoreFailure(errors.New("x")))
	}
	got := b.points(t, "oncemill.store.errors", "oncemill.store.policy")
	if got["fail_closed"] != 1 || got["fail_open"] != 1 || got["shadow"] != 1 {
		t.Errorf("errors by policy: %v", got)
	}
}
