package redisstore

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver"
)

// It sets the global meter provider, and so is not parallel.
func TestStore_CacheAnswersFurtherDuplicatesWithoutRedis(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	proxy := testserver.Proxy(t, ownServer(t).Addr)
	s := must(New(impatient(t, proxy.Addr), Config{Prefix: "test-" + ids.New(), CacheEntries: 10}))(t)
	a := claim(t, s, request("1"), dedupstore.AcquiredRun)
	settle(t, s, a.Claim, succeeded("result"))
	failure := claim(t, s, request("f"), dedupstore.AcquiredRun)
	settle(t, s, failure.Claim, failed())
	claim(t, s, request("f"), dedupstore.Done)
	claim(t, s, request("1"), dedupstore.Done) // fills the cache
	asked := proxy.Exchanges()

	got := claim(t, s, request("1"), dedupstore.Done)
	if string(got.Outcome.Result) != "result" || got.Fence != a.Claim.Fence || got.Trace != request("1").Trace || got.Found != dedupstore.Finished {
		t.Errorf("the cache answered %+v", got)
	}
	other := request("1")
	other.Fingerprint.Sum = "other"
	claim(t, s, other, dedupstore.Mismatch)
	many := s.ClaimMany(t.Context(), []dedupstore.Request{request("1"), other})
	if many[0].Answer.Status != dedupstore.Done || many[1].Answer.Status != dedupstore.Mismatch {
		t.Errorf("a batch was answered %+v", many)
	}
	if n := proxy.Exchanges() - asked; n != 0 {
		t.Errorf("Redis was asked %d times", n)
	}
	rerun := request("1")
	rerun.Rerun = got.Fence
	claim(t, s, rerun, dedupstore.Done) // a success does not run again, but Redis decides that
	claim(t, s, request("f"), dedupstore.Done)
	if n := proxy.Exchanges() - asked; n < 2 || n > 3 { // a plain claim may come before the script
		t.Errorf("Redis was asked %d times about a rerun and a failure, want 2 or 3", n)
	}
	if hits := counted(t, reader, "oncemill.cache.hits"); hits != 4 {
		t.Errorf("%d hits were counted, want 4", hits)
	}
}

func counted(t *testing.T, reader sdkmetric.Reader, name string) (n int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, point := range sum.DataPoints {
					n += point.Value
				}
			}
		}
	}
	return n
}

func TestStore_CacheDoesNotKnowWhatItCannotCompare(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	s.cache = newCache(10)
	settle(t, s, claim(t, s, request("1"), dedupstore.AcquiredRun).Claim, succeeded(""))
	blind := request("1")
	blind.Fingerprint = dedupstore.Fingerprint{}
	claim(t, s, blind, dedupstore.Done) // says nothing of the record's fingerprint
	other := request("1")
	other.Fingerprint.Sum = "other"
	claim(t, s, other, dedupstore.Mismatch)

	claim(t, s, request("1"), dedupstore.Done)
	if err := rdb.PExpire(t.Context(), s.name(key("1")), time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("1"), dedupstore.Done) // by the window that the record had when it was read
}

func TestStore_CacheForgetsWhenTheWindowEnds(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	s.cache = newCache(10)
	finish := succeeded("")
	finish.Retention = 300 * time.Millisecond
	settle(t, s, claim(t, s, request("1"), dedupstore.AcquiredRun).Claim, finish)
	claim(t, s, request("1"), dedupstore.Done)
	eventually(t, func() error {
		a, err := s.Claim(t.Context(), request("1"))
		if err == nil && a.Status != dedupstore.AcquiredRun {
			err = fmt.Errorf("answered %s", a.Status)
		}
		return err
	})
}
