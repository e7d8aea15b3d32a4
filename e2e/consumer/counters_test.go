package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/consumertest"
)

// A flawed store fails on request.
type flawed struct {
	dedupstore.Store
	claim, extend, settle func() error // nil: they work
	reply                 func() error // to a claim that was applied
	resends               bool         // claims, as a client does that got no answer
}

func (f *flawed) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if f.claim != nil {
		if err := f.claim(); err != nil {
			return dedupstore.ClaimEach(ctx, requests, func(context.Context, dedupstore.Request) (dedupstore.Answer, error) {
				return dedupstore.Answer{}, err
			})
		}
	}
	if f.resends {
		f.Store.Claim(ctx, requests)
	}
	answers := f.Store.Claim(ctx, requests)
	if f.reply != nil {
		if err := f.reply(); err != nil {
			answers[0] = dedupstore.ClaimResult{Err: err}
		}
	}
	return answers
}

func (f *flawed) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	if f.extend != nil {
		if err := f.extend(); err != nil {
			return dedupstore.ExtendEach(ctx, extensions, func(context.Context, dedupstore.Extension) error { return err })
		}
	}
	return f.Store.Extend(ctx, extensions)
}

func (f *flawed) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	if f.settle != nil {
		if err := f.settle(); err != nil {
			return dedupstore.SettleEach(ctx, settlings,
				func(context.Context, dedupstore.Claim, dedupstore.Settlement) error { return err })
		}
	}
	return f.Store.Settle(ctx, settlings)
}

// times returns an error so many times.
func times(n int, err error) func() error {
	return func() error {
		if n--; n >= 0 {
			return err
		}
		return nil
	}
}

// nth returns an error the nth time.
func nth(n int, err error) func() error {
	return func() error {
		if n--; n == 0 {
			return err
		}
		return nil
	}
}

// Each counter of a guard counts what has happened, once, and nothing else.
func TestGuard_CountsWhatHappens(t *testing.T) {
	boom := errors.New("boom")
	fails := func(err error) oncemill.RunFunc {
		return func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err }
	}
	lasts := func(d time.Duration) oncemill.RunFunc {
		return func(context.Context) (dedupstore.Outcome, error) {
			time.Sleep(d) // virtual
			return dedupstore.Outcome{}, nil
		}
	}
	crashed := dedupstore.Request{
		Owner: "a-process-that-is-dead", Lease: time.Second, Retention: time.Hour, MaxAttempts: 9,
	}
	const claims, failures, takeovers, losses = "oncemill.claims", "oncemill.failures", "oncemill.lease.takeovers",
		"oncemill.lease.losses"
	const renewals, storeErrors, oversize = "oncemill.lease.renewals", "oncemill.store.errors", "oncemill.outputs.oversize"
	const claimTimes = "oncemill.claim.duration"
	by := map[string]string{
		claims: "oncemill.outcome", failures: "oncemill.result", takeovers: "", losses: "", renewals: "oncemill.result",
		storeErrors: "oncemill.store.operation", oversize: "", claimTimes: "oncemill.outcome",
	}
	type counts = map[string]map[string]int64
	for name, c := range map[string]struct {
		crashed bool
		young   bool // the lease of the crashed run has not ended
		policy  oncemill.Policy
		store   flawed
		work    []oncemill.RunFunc // of one message
		publish func() error       // set: a failure has a dead letter
		want    counts
	}{
		"a success and its duplicate": {
			work: []oncemill.RunFunc{lasts(0), lasts(0)},
			want: counts{claims: {"claimed": 1, "duplicate_completed": 1}},
		},
		"a failure for good": {
			work: []oncemill.RunFunc{fails(oncemill.Permanent(boom)), lasts(0)},
			want: counts{claims: {"claimed": 1, "duplicate_failed": 1}, failures: {"permanent": 1}},
		},
		"an error": {
			work: []oncemill.RunFunc{fails(boom), lasts(0)},
			want: counts{claims: {"claimed": 1, "reclaimed": 1}},
		},
		"the last attempt": {
			policy: oncemill.Policy{MaxAttempts: 1}, work: []oncemill.RunFunc{fails(boom)},
			want: counts{claims: {"claimed": 1}, failures: {"exhausted": 1}},
		},
		"an unknown outcome": {
			policy: oncemill.Policy{ExpiredLease: oncemill.Park}, work: []oncemill.RunFunc{fails(boom), lasts(0)},
			want: counts{
				claims: {"claimed": 1, "duplicate_unknown": 1}, failures: {"unknown": 1}, renewals: {"ok": 1},
			},
		},
		"a crash": {
			crashed: true, work: []oncemill.RunFunc{lasts(0)},
			want: counts{claims: {"reclaimed": 1}, takeovers: {"": 1}},
		},
		"a crash whose lease is waited for": {
			crashed: true, young: true, work: []oncemill.RunFunc{lasts(0)},
			want: counts{claims: {"duplicate_in_progress": 1, "reclaimed": 1}, takeovers: {"": 1}},
		},
		"a crash in the last attempt": {
			crashed: true, policy: oncemill.Policy{MaxAttempts: 1}, work: []oncemill.RunFunc{lasts(0)},
			want: counts{claims: {"publish_only": 1}, takeovers: {"": 1}, failures: {"exhausted": 1}},
		},
		"a long run": {
			policy: oncemill.Policy{Lease: 24 * time.Second}, work: []oncemill.RunFunc{lasts(30 * time.Second)},
			want: counts{claims: {"claimed": 1}, renewals: {"ok": 3}},
		},
		"a run that loses its claim": {
			policy: oncemill.Policy{Lease: 24 * time.Second}, work: []oncemill.RunFunc{lasts(30 * time.Second)},
			store: flawed{extend: times(1, dedupstore.ErrClaimLost)},
			want:  counts{claims: {"claimed": 1}, renewals: {"lost": 1}, losses: {"": 1}},
		},
		"a renewal that fails": {
			policy: oncemill.Policy{Lease: 24 * time.Second}, work: []oncemill.RunFunc{lasts(11 * time.Second)},
			store: flawed{extend: times(1, boom)},
			want:  counts{claims: {"claimed": 1}, renewals: {"error": 1, "ok": 1}},
		},
		"a settlement that is refused at first": {
			work: []oncemill.RunFunc{fails(boom)}, store: flawed{settle: times(3, boom)},
			want: counts{claims: {"claimed": 1}},
		},
		"a settlement that is never taken": {
			work: []oncemill.RunFunc{fails(boom)}, store: flawed{settle: times(1<<30, boom)},
			want: counts{claims: {"claimed": 1}, storeErrors: {"settle": 1}},
		},
		"a claim that waits for the store": {
			work: []oncemill.RunFunc{lasts(0)}, store: flawed{claim: times(3, boom)},
			want: counts{claims: {"store_error": 1, "claimed": 1}, storeErrors: {"claim": 3}},
		},
		"a claim whose answer is lost": {
			work: []oncemill.RunFunc{lasts(0)}, store: flawed{reply: times(1, boom)},
			want: counts{
				claims: {"store_error": 1, "claimed": 1}, storeErrors: {"claim": 1}, claimTimes: {"store_error": 1, "claimed": 1},
			},
		},
		"a claim that the client sends twice": {
			work: []oncemill.RunFunc{lasts(0)}, store: flawed{resends: true},
			want: counts{claims: {"claimed": 1}},
		},
		"a second claim whose answer is lost": {
			work: []oncemill.RunFunc{fails(boom), lasts(0)}, store: flawed{reply: nth(2, boom)},
			want: counts{claims: {"claimed": 1, "store_error": 1, "reclaimed": 1}, storeErrors: {"claim": 1}},
		},
		"a run that cannot be marked as started": {
			policy: oncemill.Policy{ExpiredLease: oncemill.Park, Lease: time.Second}, work: []oncemill.RunFunc{lasts(0)},
			store: flawed{extend: times(1<<30, boom)},
			want:  counts{claims: {"claimed": 1}, storeErrors: {"extend": 1}},
		},
		"a settlement that is refused": {
			work: []oncemill.RunFunc{fails(boom)}, store: flawed{settle: times(1, dedupstore.ErrClaimLost)},
			want: counts{claims: {"claimed": 1}, losses: {"": 1}},
		},
		"a dead letter that is published late": {
			work: []oncemill.RunFunc{fails(oncemill.Permanent(boom)), lasts(0)}, publish: times(1, boom),
			want: counts{claims: {"claimed": 1, "publish_only": 1}, failures: {"permanent": 1}, renewals: {"ok": 1}},
		},
		"outputs for which there is no room": {
			work: []oncemill.RunFunc{func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o", Topic: "t"}}}, nil
			}},
			store: flawed{settle: times(1, dedupstore.ErrFull)},
			want:  counts{claims: {"claimed": 1}, storeErrors: {"settle": 1}},
		},
		"a result for which there is no room": {
			work: []oncemill.RunFunc{func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{Result: []byte("long")}, nil
			}},
			store: flawed{settle: times(1, dedupstore.ErrFull)},
			want:  counts{claims: {"claimed": 1}, storeErrors: {"settle": 1}},
		},
		"outputs that are too large": {
			policy: oncemill.Policy{MaxProducedBytes: 1},
			work: []oncemill.RunFunc{func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o", Topic: "t", Payload: []byte("xx")}}}, nil
			}},
			want: counts{claims: {"claimed": 1}, oversize: {"": 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			consumertest.Virtual(t, func(t *testing.T) {
				c.store.Store = newStore(t)
				reader := sdkmetric.NewManualReader()
				c.policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
				c.policy.Logger = slog.New(slog.DiscardHandler)
				guard, err := oncemill.NewGuard(&c.store, c.policy)
				if err != nil {
					t.Fatal(err)
				}
				defer guard.Close()
				call := oncemill.Call{
					Key:     dedupstore.Key{Tenant: "t", Group: "billing", Handler: "charge", ID: "m1"},
					MaxWait: time.Minute,
					Publish: func(context.Context, []dedupstore.Produced) error { return nil },
				}
				if c.publish != nil {
					call.Publish = func(context.Context, []dedupstore.Produced) error { return c.publish() }
					call.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced {
						return []dedupstore.Produced{{ID: "letter", Topic: "dead"}}
					}
				}
				if c.crashed {
					dead := crashed
					dead.Key = call.Key
					if _, err := dedupstore.ClaimOne(t.Context(), c.store.Store, dead); err != nil {
						t.Fatal(err)
					}
					if !c.young {
						time.Sleep(time.Minute) // virtual
					}
				}
				for _, work := range c.work {
					_, _ = guard.Run(t.Context(), call, work)
					time.Sleep(time.Hour) // virtual
				}
				for kind := range counted(t, reader, storeErrors, "error.type") {
					if full := strings.Contains(name, "no room"); full != (kind == "full") {
						t.Errorf("the store's error counts as %q", kind)
					}
				}
				if took := seconds(t, reader, claimTimes); took != 0 { // virtual
					t.Errorf("claims took %v s of a store that answers at once", took)
				}
				for metric, label := range by {
					if c.want[metric] == nil && (metric == claimTimes || metric == renewals && c.store.extend != nil) {
						continue
					}
					if got := counted(t, reader, metric, label); !maps.Equal(got, c.want[metric]) {
						t.Errorf("%s: %v, want %v", metric, got, c.want[metric])
					}
				}
			})
		})
	}
}

// A call that waits for another's run counts as one duplicate, however often it asks.
func TestGuard_CountsAWaitOnce(t *testing.T) {
	consumertest.Virtual(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		guard, err := oncemill.NewGuard(newStore(t), oncemill.Policy{
			Logger:    slog.New(slog.DiscardHandler),
			Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer guard.Close()
		call := oncemill.Call{
			Key: dedupstore.Key{Tenant: "t", Group: "billing", Handler: "charge", ID: "m1"}, MaxWait: time.Minute,
		}
		first := make(chan error, 1)
		began := make(chan struct{})
		go func() {
			_, err := guard.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
				close(began)
				time.Sleep(5 * time.Second) // virtual
				return dedupstore.Outcome{}, nil
			})
			first <- err
		}()
		<-began
		res, err := guard.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, errors.New("it runs again")
		})
		if err != nil || <-first != nil || !res.Duplicate {
			t.Errorf("%+v, %v", res, err)
		}
		want := map[string]int64{"claimed": 1, "duplicate_in_progress": 1, "duplicate_completed": 1}
		if got := counted(t, reader, "oncemill.claims", "oncemill.outcome"); !maps.Equal(got, want) {
			t.Errorf("claims: %v, want %v", got, want)
		}
	})
}

// A failing inbox does not begin a transaction, or does not commit it.
type failing struct {
	*storetest.MemoryInbox
	begins bool
	err    error
}

// TakesFirst implements [dedupstore.Transactor].
func (f failing) TakesFirst() bool { return true }

func (f failing) InTx(ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork) ([]dedupstore.Answer, error) {
	if !f.begins {
		return nil, f.err
	}
	if r := runs[0].First; r != nil {
		_, err := work(ctx, []dedupstore.Claim{{
			Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: r.Lease, Retention: r.Retention,
		}})
		return nil, cmp.Or(f.err, err)
	}
	return f.MemoryInbox.InTx(ctx, runs, func(
		ctx context.Context, claims []dedupstore.Claim,
	) ([]dedupstore.Settlement, error) {
		if _, err := work(ctx, claims); err != nil {
			return nil, err
		}
		return nil, f.err
	})
}

// A knowing inbox finds that first runs have succeeded before.
type knowing struct{ failing }

func (knowing) InTx(_ context.Context, runs []dedupstore.TxRun, _ dedupstore.TxWork) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(runs))
	for i := range answers {
		answers[i] = dedupstore.Answer{
			Status: dedupstore.Done, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded},
		}
	}
	return answers, nil
}

// Claims that are asked for together are timed each, as is what a transaction finds. One that fails is asked for again.
func TestStartBatch_TimesEachClaim(t *testing.T) {
	for name, c := range map[string]struct {
		store func(t *testing.T) dedupstore.Store
		known bool
		want  map[string]int64
	}{
		"a store that fails once": {func(t *testing.T) dedupstore.Store {
			return &flawed{Store: newStore(t), claim: times(1, errors.New("down"))}
		}, false, map[string]int64{"store_error": 2, "claimed": 2}},
		"an inbox that knows them": {func(t *testing.T) dedupstore.Store {
			return knowing{failing{MemoryInbox: storetest.NewMemoryInbox(newStore(t))}}
		}, true, map[string]int64{"duplicate_completed": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			consumertest.Virtual(t, func(t *testing.T) {
				reader := sdkmetric.NewManualReader()
				policy := oncemill.Policy{Logger: slog.New(slog.DiscardHandler)}
				policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
				guard, err := oncemill.NewGuard(c.store(t), policy)
				if err != nil {
					t.Fatal(err)
				}
				defer guard.Close()
				calls := make([]oncemill.Call, 2)
				for i := range calls {
					key := dedupstore.Key{Tenant: "t", Group: "billing", Handler: "charge", ID: string(rune('a' + i))}
					calls[i] = oncemill.Call{Key: key, MaxWait: time.Minute, First: true}
				}
				var ended sync.WaitGroup
				ended.Add(len(calls))
				guard.StartBatch(t.Context(), calls, []context.Context{t.Context(), t.Context()},
					func(context.Context, []int) []error { return nil },
					func(i int, res oncemill.Result, err error) {
						defer ended.Done()
						if err != nil || res.Status != oncemill.StatusDone || res.Duplicate != c.known {
							t.Errorf("call %d ended with %+v, %v", i, res, err)
						}
					})
				ended.Wait()
				if got := counted(t, reader, "oncemill.claim.duration", "oncemill.outcome"); !maps.Equal(got, c.want) {
					t.Errorf("timed %v, want %v", got, c.want)
				}
				if took := seconds(t, reader, "oncemill.claim.duration"); took != 0 { // virtual
					t.Errorf("they took %v s of a store that answers at once", took)
				}
			})
		})
	}
}

func TestGuard_CountsWhatAnInboxRefuses(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		begins, first bool
		err           error
		want          string
	}{
		"no beginning":                  {false, false, down, "begin"},
		"no room":                       {true, false, dedupstore.ErrFull, "settle"},
		"no known end":                  {true, false, &dedupstore.UndecidedError{Err: down}, "settle"},
		"no known end, without a claim": {true, true, &dedupstore.UndecidedError{Err: down}, "settle"},
	} {
		t.Run(name, func(t *testing.T) {
			consumertest.Virtual(t, func(t *testing.T) {
				reader := sdkmetric.NewManualReader()
				guard, err := oncemill.NewGuard(failing{storetest.NewMemoryInbox(newStore(t)), c.begins, c.err}, oncemill.Policy{
					Logger:    slog.New(slog.DiscardHandler),
					Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer guard.Close()
				call := oncemill.Call{
					Key: dedupstore.Key{Tenant: "t", Group: "billing", Handler: "charge", ID: "m1"}, First: c.first,
				}
				if _, err := guard.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
					return dedupstore.Outcome{}, nil
				}); err == nil {
					t.Error("it ended well")
				}
				want := map[string]int64{c.want: 1}
				if got := counted(t, reader, "oncemill.store.errors", "oncemill.store.operation"); !maps.Equal(got, want) {
					t.Errorf("store errors: %v, want %v", got, want)
				}
			})
		})
	}
}
