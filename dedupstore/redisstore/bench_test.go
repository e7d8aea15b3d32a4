package redisstore

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// BenchmarkStore_Batch measures claims of fresh keys and finishes without products, 64 in a batch, and reports what a
// record costs in each.
func BenchmarkStore_Batch(b *testing.B) {
	const batch = 64
	s, _ := onServer(b)
	requests, settlings := make([]dedupstore.Request, batch), make([]dedupstore.Settling, batch)
	var claims, settles cost
	made := 0
	for b.Loop() {
		for i := range requests {
			made++
			requests[i] = request("message-" + strconv.Itoa(made))
			requests[i].Holder = "host:4711"
		}
		var results []dedupstore.ClaimResult
		claims.measure(func() { results = s.Claim(b.Context(), requests) })
		for i, result := range results {
			if result.Err != nil || result.Answer.Status != dedupstore.AcquiredRun {
				b.Fatalf("claim was answered %+v", result)
			}
			settlings[i] = dedupstore.Settling{Claim: result.Answer.Claim, Settlement: succeeded("")}
		}
		var errs []error
		settles.measure(func() { errs = s.Settle(b.Context(), settlings) })
		for _, err := range errs {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	claims.report(b, "claim", made)
	settles.report(b, "settle", made)
}

// A cost is what operations took together.
type cost struct {
	mallocs, bytes uint64
	time           time.Duration
}

func (c *cost) measure(f func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	f()
	c.time += time.Since(start)
	runtime.ReadMemStats(&after)
	c.mallocs += after.Mallocs - before.Mallocs
	c.bytes += after.TotalAlloc - before.TotalAlloc
}

func (c *cost) report(b *testing.B, name string, records int) {
	b.ReportMetric(float64(c.mallocs)/float64(records), "allocs/"+name)
	b.ReportMetric(float64(c.bytes)/float64(records), "B/"+name)
	b.ReportMetric(float64(c.time.Nanoseconds())/float64(records), "ns/"+name)
}
