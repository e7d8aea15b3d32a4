package console_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
)

var proof = os.Getenv("ONCEMILL_PROOF") != ""

// full returns the number for a proof, and a small one otherwise.
func full[T any](all, few T) T {
	if proof {
		return all
	}
	return few
}

// onServers runs a test on a store in Redis, and on one in PostgreSQL, with many records.
func onServers(t *testing.T, test func(t *testing.T, store dedupstore.Inspector, records int)) {
	records := full(1_000_000, 3_000)
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.New(redistest.Start(t).Client(), redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		fillStore(t, store, records)
		test(t, store, records)
	})
	t.Run("postgres", func(t *testing.T) {
		store, err := pgstore.New(postgrestest.Shared(t).NewDatabase(t).Pool(t), pgstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		fillStore(t, store, records)
		test(t, store, records)
	})
}

// fillStore makes many records, of which one in a hundred failed, for one of ten reasons.
func fillStore(t *testing.T, store dedupstore.Store, records int) {
	t.Helper()
	start := time.Now()
	const batch = 500
	var made atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				from := int(made.Add(batch)) - batch
				if from >= records {
					return
				}
				requests := make([]dedupstore.Request, min(batch, records-from))
				for i := range requests {
					requests[i] = dedupstore.Request{
						Key:   key([]string{"charge", "receipt", "mail"}[i%3], fmt.Sprintf("order-%07d", from+i)),
						Owner: producer.NewID(), Lease: time.Minute, Retention: day, MaxAttempts: 3,
						Holder: "billing-7f9c4:12",
					}
				}
				settlings := make([]dedupstore.Settling, len(requests))
				for i, r := range store.Claim(t.Context(), requests) {
					if r.Err != nil {
						t.Error(r.Err)
						return
					}
					o := dedupstore.Outcome{Kind: dedupstore.Succeeded}
					if i%100 == 7 {
						o = dedupstore.Outcome{Kind: dedupstore.Failed,
							Reason: fmt.Sprintf("the gateway %c answers 500 for charge %d", 'A'+from/batch%10, from+i)}
					}
					settlings[i] = dedupstore.Settling{Claim: r.Answer.Claim,
						Settlement: dedupstore.Finish{Outcome: o, Retention: day}}
				}
				for _, err := range store.Settle(t.Context(), settlings) {
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d records in %v", records, time.Since(start).Round(time.Millisecond))
}

// A counted server knows how many connections it has.
type counted struct {
	*httptest.Server
	open atomic.Int64
}

func serveMany(t *testing.T, store dedupstore.Inspector) (s *counted, stop func()) {
	t.Helper()
	var n atomic.Int64
	c, err := console.New(console.Config{
		Stores: []console.Store{{Name: "records", Inspector: store}}, Logger: slog.New(slog.DiscardHandler),
		Authorize: console.ViewOnly,
		Counters: func(context.Context) ([]console.Counter, error) {
			return []console.Counter{{Group: "billing", Handler: "charge", Outcome: "claimed", Count: n.Add(7)}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s = &counted{Server: httptest.NewUnstartedServer(c.Handler())}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.open.Add(-1)
		}
	}
	s.Start()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		s.Close()
	})
	t.Cleanup(stop)
	return s, stop
}

// A page of Messages or of Failures takes less than 300 ms, however many records there are: the median of seven times.
func TestMany_PagesAreFast(t *testing.T) {
	onServers(t, func(t *testing.T, store dedupstore.Inspector, records int) {
		s, _ := serveMany(t, store)
		slowest := time.Duration(0)
		for _, path := range []string{
			"/messages", "/messages?state=succeeded", "/messages?state=failed", "/messages?state=unknown",
			"/messages?since=5m", "/messages?handler=mail", "/messages?id=order-0000042",
			"/failures", "/failures?list=1", "/failures?list=1&reason=gateway+C",
			"/message?in=records&key=" + key("charge", "order-0000042").String(), "/",
		} {
			var took []time.Duration
			for range 7 {
				start := time.Now()
				response, err := s.Client().Get(s.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				size, err := io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if err != nil || response.StatusCode != http.StatusOK || size < 2000 {
					t.Errorf("%s: %s, %d bytes, %v", path, response.Status, size, err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			t.Logf("%6.1f ms, at most %6.1f: %s", took[3].Seconds()*1000, took[6].Seconds()*1000, path)
			slowest = max(slowest, took[3])
		}
		if limit := 300 * time.Millisecond; proof && slowest > limit {
			t.Errorf("a page took %v of %d records, want at most %v", slowest, records, limit)
		}
	})
}

// The overview with 200 viewers costs one sample, and nothing is left of them.
func TestMany_LiveStreamsCostLittleAndLeaveNothing(t *testing.T) {
	onServers(t, func(t *testing.T, store dedupstore.Inspector, _ int) {
		before := runtime.NumGoroutine()
		s, stop := serveMany(t, store)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		client := &http.Client{Transport: &http.Transport{}}
		var viewers sync.WaitGroup
		var seen atomic.Int64
		for range 200 {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/live?screen=overview", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			viewers.Go(func() {
				defer response.Body.Close()
				n, _ := io.Copy(io.Discard, response.Body) // ends with ctx
				seen.Add(n)
			})
		}
		pause(t, full(10*time.Second, time.Second)) // what begins is over
		for range full(3, 1) {
			used, start := cpu(t), time.Now()
			pause(t, full(20*time.Second, 2*time.Second))
			share := float64(cpu(t)-used) / float64(time.Since(start))
			t.Logf("%.2f %% of a core for 200 viewers, who run in this process too", 100*share)
			if proof && share > 0.05 {
				t.Errorf("%.2f %% of a core, want at most 5 %%", 100*share)
			}
		}
		leave()
		viewers.Wait()
		if seen.Load() < 200*1000 {
			t.Errorf("200 viewers saw %d bytes", seen.Load())
		}
		client.CloseIdleConnections()
		await(t, "connections", func() int { return int(s.open.Load()) }, 0)
		stop()
		http.DefaultClient.CloseIdleConnections()
		await(t, "goroutines", runtime.NumGoroutine, before)
	})
}

// await waits until there are no more than so many.
func await(t *testing.T, what string, count func() int, most int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for n := count(); n > most; n = count() {
		if ctx.Err() != nil {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d %s are left, want %d\n%s", n, what, most, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
		pause(t, 5*time.Millisecond)
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// cpu is what this process has used of all cores.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
