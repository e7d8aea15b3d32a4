package dedupstore_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

func TestMemory_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunVirtual(t, func(t *testing.T) storetest.Subject {
		m := newMemory(t, 0)
		return storetest.Subject{Store: m, TTL: m.TTL}
	})
}

func BenchmarkMemory(b *testing.B) {
	storetest.Benchmarks(b, func(b *testing.B) dedupstore.Store { return newMemory(b, 0) })
}

func newMemory(tb testing.TB, maxBytes int64) *dedupstore.Memory {
	tb.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: maxBytes})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: "owner-of-" + fmt.Sprintf("%012s", id), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
	}
}

// fill claims new keys until the store is full, and returns what it granted.
func fill(t *testing.T, m *dedupstore.Memory, name string) []dedupstore.Claim {
	t.Helper()
	var claims []dedupstore.Claim
	for {
		a, err := dedupstore.ClaimOne(t.Context(), m, request(fmt.Sprintf("%s-%d", name, len(claims))))
		if errors.Is(err, dedupstore.ErrFull) {
			return claims
		}
		if err != nil || a.Status != dedupstore.AcquiredRun {
			t.Fatalf("claim was answered %s, %v", a.Status, err)
		}
		claims = append(claims, a.Claim)
	}
}

func TestNewMemory_RefusesANegativeBound(t *testing.T) {
	t.Parallel()
	_, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: -1})
	wantInvalid(t, err, "MemoryConfig.MaxBytes", "is -1, want at least 0")
}

func TestMemory_FullStoreRefusesNewKeysAndForgetsNone(t *testing.T) {
	t.Parallel()
	const bound = 100_000
	m := newMemory(t, bound)
	claims := fill(t, m, "a")
	if n := m.Len(); n != len(claims) || n < 10 || m.Bytes() > bound {
		t.Errorf("a store of %d bytes granted %d claims and holds %d records of %d bytes", bound, len(claims), n,
			m.Bytes())
	}
	for range 3 {
		if _, err := dedupstore.ClaimOne(t.Context(), m, request("new")); !errors.Is(err, dedupstore.ErrFull) {
			t.Errorf("a new key was answered %v, want ErrFull", err)
		}
	}
	for _, c := range claims {
		r := request(c.Key.ID)
		r.Owner = "another-owner-token"
		if a, err := dedupstore.ClaimOne(t.Context(), m, r); err != nil || a.Status != dedupstore.Busy {
			t.Fatalf("a known key was answered %s, %v; want busy", a.Status, err)
		}
	}
}

func TestMemory_FullStoreSettlesAndRetriesKnownKeys(t *testing.T) {
	t.Parallel()
	m := newMemory(t, 100_000)
	claims := fill(t, m, "a")
	for i, c := range claims {
		if err := dedupstore.ExtendOne(t.Context(), m, dedupstore.Extension{
			Claim: c, Lease: time.Minute, Started: true,
		}); err != nil {
			t.Fatalf("extend: %v", err)
		}
		var s dedupstore.Settlement = dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Result: make([]byte, 1000), Produced: []dedupstore.Produced{{ID: "out"}},
		}}
		if i == 0 {
			s = dedupstore.Release{}
		}
		if err := dedupstore.SettleOne(t.Context(), m, c, s); err != nil {
			t.Fatalf("settle: %v", err)
		}
	}
	r := request(claims[0].Key.ID)
	r.Owner = "another-owner-token"
	a, err := dedupstore.ClaimOne(t.Context(), m, r)
	if err != nil || a.Status != dedupstore.AcquiredRun || a.Claim.Attempt != 2 {
		t.Errorf("the retry of a known key was answered %s, %v; want a second run", a.Status, err)
	}
}

func TestMemory_RoomComesBackWhenRecordsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, 100_000)
		first := fill(t, m, "a")
		<-time.After(time.Minute + time.Hour - 1)
		if n := len(fill(t, m, "b")); n != 0 {
			t.Fatalf("%d keys found room before the records expired", n)
		}
		<-time.After(1)
		second := fill(t, m, "c")
		if len(second) != len(first) || m.Len() != len(second) {
			t.Errorf("%d keys found room, then %d; there are %d records", len(first), len(second), m.Len())
		}
		<-time.After(2 * time.Hour)
		err := dedupstore.SettleOne(t.Context(), m, first[0], dedupstore.Release{})
		if !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("settle of a forgotten record returned %v, want ErrClaimLost", err)
		}
		if n, bytes := m.Len(), m.Bytes(); n != 0 || bytes != 0 {
			t.Errorf("%d records of %d bytes are left", n, bytes)
		}
	})
}

func TestMemory_CountsWhatAnOutcomeTakesUntilItIsDropped(t *testing.T) {
	t.Parallel()
	const size = 100_000
	m := newMemory(t, 0)
	a, err := dedupstore.ClaimOne(t.Context(), m, request("1"))
	if err != nil {
		t.Fatal(err)
	}
	running := m.Bytes()
	finish := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{
		Kind: dedupstore.Succeeded, Result: make([]byte, size),
		Produced: []dedupstore.Produced{{
			ID: "out", Header: map[string]string{"h": strings.Repeat("x", size)}, Payload: make([]byte, size),
		}},
	}}
	if err := dedupstore.SettleOne(t.Context(), m, a.Claim, finish); err != nil {
		t.Fatal(err)
	}
	publishing := m.Bytes()
	if err := dedupstore.SettleOne(t.Context(), m, a.Claim, dedupstore.Published{Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	done := m.Bytes()
	if grown := publishing - running; grown < 3*size || grown > 3*size+1000 {
		t.Errorf("the outcome counts as %d bytes, want about %d", grown, 3*size)
	}
	if grown := done - running; grown < size || grown > size+1000 {
		t.Errorf("the published outcome counts as %d bytes, want about %d", grown, size)
	}
}

// It is not parallel: others would allocate at the same time.
func TestMemory_EstimateIsNotBelowWhatARecordTakes(t *testing.T) {
	const records = 50_000
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	m, before := newMemory(t, 0), heap()
	for i := range records {
		r := request(strings.Clone(fmt.Sprintf("%032d", i)))
		r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: fmt.Sprintf("%043d", i)}
		a, err := dedupstore.ClaimOne(t.Context(), m, r)
		if err == nil {
			err = dedupstore.SettleOne(t.Context(), m, a.Claim, dedupstore.Finish{
				Retention: time.Hour,
				Outcome: dedupstore.Outcome{
					Kind: dedupstore.Succeeded, Result: make([]byte, 100),
					Produced: []dedupstore.Produced{{ID: fmt.Sprint(i), Topic: "orders"}},
				},
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	taken := (heap() - before) / records
	estimate := m.Bytes() / records
	t.Logf("a record takes %d bytes, the estimate is %d, the struct has %d", taken, estimate, dedupstore.RecordSize)
	if estimate < taken || estimate > 2*taken {
		t.Errorf("a record takes %d bytes, the estimate is %d, want it above, and not twice as much", taken, estimate)
	}
	runtime.KeepAlive(m)
}
