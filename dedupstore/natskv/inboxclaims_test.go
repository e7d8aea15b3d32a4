package natskv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// newClaims makes an inbox over a stream in memory, where new keys are claimed by one batch, and notes the sizes of its
// batches.
func newClaims(t *testing.T) (in *Inbox, sizes *[]int) {
	t.Helper()
	c := Stream("ORDERS", 1, "orders.>")
	c.Storage = jetstream.MemoryStorage
	in, sizes = newInbox(t, natstest.Start(t).JetStream(), c), &[]int{}
	if _, err := in.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	in.batches.fault = func(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
		*sizes = append(*sizes, len(messages))
		return send()
	}
	return in, sizes
}

func requests(name string, n int) (all []dedupstore.Request) {
	for i := range n {
		all = append(all, request(fmt.Sprint(name, i)))
	}
	return all
}

// granted wants claims of all, and returns them.
func granted(t *testing.T, results []dedupstore.ClaimResult) (claims []dedupstore.Claim) {
	t.Helper()
	for i, r := range results {
		if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun {
			t.Fatalf("claim %d is answered %s, %v", i, r.Answer.Status, r.Err)
		}
		claims = append(claims, r.Answer.Claim)
	}
	return claims
}

// A record that no stream takes is not one for which there is no room now. The claim is as it was.
func TestInbox_ARecordThatIsTooLarge(t *testing.T) {
	t.Parallel()
	in, _ := newClaims(t)
	c := granted(t, in.Claim(t.Context(), requests("a", 1)))[0]
	o := dedupstore.Outcome{Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{
		{ID: "o1", Topic: "elsewhere", Payload: make([]byte, 2<<20)},
	}}
	err := dedupstore.InTxOne(t.Context(), in, c, func(context.Context) (dedupstore.Settlement, error) {
		return dedupstore.Finish{Outcome: o, Retention: time.Hour}, nil
	})
	if !errors.Is(err, dedupstore.ErrTooLarge) {
		t.Errorf("the transaction returned %v", err)
	}
	o = dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "too large"}
	f := dedupstore.Finish{Outcome: o, Retention: time.Hour}
	if err := dedupstore.SettleOne(t.Context(), in, c, f); err != nil {
		t.Error(err)
	}
}

func TestInbox_NewKeysAreClaimedByOneBatch(t *testing.T) {
	t.Parallel()
	in, sizes := newClaims(t)
	asked := requests("a", 4)
	claims := granted(t, in.Claim(t.Context(), asked))
	if !slices.Equal(*sizes, []int{4}) {
		t.Errorf("batches of %v, want one of 4", *sizes)
	}
	again := granted(t, inboxOf(t, in.js, "ORDERS").Claim(t.Context(), asked)) // as after a lost answer
	for i, c := range claims {
		if again[i].Fence != c.Fence {
			t.Errorf("claim %d has fence %d, and %d when it is asked for again", i, c.Fence, again[i].Fence)
		}
		settle(t, in, c, succeeded(""))
	}
}

func TestInbox_AKnownKeyAmongNewOnes(t *testing.T) {
	t.Parallel()
	in, sizes := newClaims(t)
	asked := requests("a", 4)
	claim(t, inboxOf(t, in.js, "ORDERS"), request("a2"), dedupstore.AcquiredRun)
	results := in.Claim(t.Context(), asked)
	if a := results[2]; a.Err != nil || a.Answer.Status != dedupstore.Busy {
		t.Errorf("the known one is answered %s, %v", a.Answer.Status, a.Err)
	}
	granted(t, slices.Delete(results, 2, 3))
	for i := range 5 {
		granted(t, in.Claim(t.Context(), requests(fmt.Sprint("b", i, "-"), 3)))
	}
	if want := []int{4, 3, 3, 3}; !slices.Equal(*sizes, want) {
		t.Errorf("batches of %v, want %v: the next two are not tried", *sizes, want)
	}
}

func TestInbox_LostAnswerToNewKeys(t *testing.T) {
	t.Parallel()
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, _ := newClaims(t)
			var late []*nats.Msg
			in.batches.fault = func(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
				if applied {
					_, _ = send()
				}
				late = messages
				return 0, errLost
			}
			claims := granted(t, in.Claim(t.Context(), requests("a", 3)))
			in.batches.fault = nil
			if _, err := in.batches.publish(t.Context(), late); !conflict(err) {
				t.Errorf("a late batch of claims: %v, want a conflict", err)
			}
			for _, c := range claims {
				settle(t, in, c, succeeded(""))
			}
			seen, err := in.Look(t.Context(), []dedupstore.Key{key("a0"), key("a1"), key("a2")})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range seen {
				if r.State != dedupstore.Finished || r.Attempts != 1 {
					t.Errorf("%v is %s after %d attempts", r.Key, r.State, r.Attempts)
				}
			}
		})
	}
}
