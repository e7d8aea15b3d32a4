package storetest

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// brevity is how long the records of benchmarks are kept.
const brevity = 100 * time.Millisecond

// batchSize is how many messages the batches of benchmarks have.
const batchSize = 64

// Benchmarks measures a store by the operations of a message's life, as sub-benchmarks of the same names for every
// store. It calls open once for each of them. Their records are kept for about 100 ms, so that a run leaves little
// behind. An operation of the benchmark of batches is a batch of 64; its time a message is reported beside.
func Benchmarks(b *testing.B, open func(b *testing.B) dedupstore.Store) {
	bench := func(name string, f func(b *testing.B, k *kit, next func() dedupstore.Request)) {
		b.Run(name, func(b *testing.B) {
			k := newKit(b, Subject{Store: open(b)})
			var made atomic.Int64
			b.ReportAllocs()
			f(b, k, func() dedupstore.Request {
				r := k.request(strconv.FormatInt(made.Add(1), 10))
				r.Retention = brevity
				return r
			})
		})
	}
	bench("fresh-claim", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		for b.Loop() {
			r := next()
			r.Lease = brevity // it is never settled
			k.claim(r, dedupstore.AcquiredRun)
		}
	})
	bench("claim+finish", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		for b.Loop() {
			if err := k.message(next()); err != nil {
				b.Fatal(err)
			}
		}
	})
	bench("duplicate", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		r := next()
		k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, finish(succeeded("paid")))
		for b.Loop() {
			k.claim(r, dedupstore.Done)
		}
	})
	bench("extend", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		c := k.claim(next(), dedupstore.AcquiredRun).Claim
		for b.Loop() {
			k.extend(c, long)
		}
	})
	bench("parallel-claim+finish", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := k.message(next()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	bench("batch-of-64-claim+finish", func(b *testing.B, k *kit, next func() dedupstore.Request) {
		requests := make([]dedupstore.Request, batchSize)
		for b.Loop() {
			for i := range requests {
				requests[i] = next()
			}
			if err := k.batch(requests); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batchSize), "ns/message")
	})
}

// batch is what messages cost that are processed once and travel together.
func (k *kit) batch(requests []dedupstore.Request) error {
	settlings := make([]dedupstore.Settling, len(requests))
	f := finish(succeeded("paid"))
	f.Retention = brevity
	for i, r := range k.Store.Claim(k.Context(), requests) {
		if r.Err != nil {
			return r.Err
		}
		settlings[i] = dedupstore.Settling{Claim: r.Answer.Claim, Settlement: f}
	}
	return errors.Join(k.Store.Settle(k.Context(), settlings)...)
}

// message is what a message costs that is processed once.
func (k *kit) message(r dedupstore.Request) error {
	a, err := dedupstore.ClaimOne(k.Context(), k.Store, r)
	if err != nil {
		return err
	}
	f := finish(succeeded("paid"))
	f.Retention = brevity
	return dedupstore.SettleOne(k.Context(), k.Store, a.Claim, f)
}
