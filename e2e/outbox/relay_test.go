package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// deaths returns how many rows a reader has for dead.
func deaths(t *testing.T, reader *sdkmetric.ManualReader) (n int64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == "oncemill.outbox.deaths" {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

// store has two rows: one that cannot be read, and one that the broker refuses.
type store struct {
	mu   sync.Mutex
	down bool
	rows map[string]*row
}

type row struct {
	outbox.Row
	due   time.Time
	token string
	dead  bool
}

func newStore() *store {
	s := &store{rows: map[string]*row{}}
	for i, id := range []string{"refused", "unreadable"} {
		s.rows[id] = &row{Row: outbox.Row{Number: int64(i + 1), Message: producer.Message{ID: id, Topic: "orders"}}}
	}
	s.rows["unreadable"].Problem = "its header is no JSON"
	return s
}

func (s *store) Lease(_ context.Context, r outbox.LeaseRequest) (leased []outbox.Row, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range s.rows {
		suspect := row.Unknowns > 0 || row.token != ""
		if row.dead || time.Now().Before(row.due) || suspect != r.Suspects || len(leased) == r.Limit {
			continue
		}
		if row.token != "" {
			row.Unknowns++
		}
		row.token, row.due = r.Token, time.Now().Add(r.Lease)
		leased = append(leased, row.Row)
	}
	return leased, nil
}

func (s *store) Settle(_ context.Context, token string, results []outbox.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errors.New("the store is down")
	}
	for _, row := range s.rows {
		for _, r := range results {
			if row.token == token && r.Number == row.Number && r.State == outbox.Dead {
				row.dead = true
			}
		}
		if row.token == token {
			row.token, row.due = "", time.Now()
		}
	}
	return nil
}

func (*store) Clean(context.Context, time.Duration, int) (int, error) { return 0, nil }

func (s *store) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *store) dead() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range s.rows {
		if row.dead {
			n++
		}
	}
	return n
}

// broker refuses all messages.
type broker struct{}

func (broker) Publish(_ context.Context, messages ...producer.Message) error {
	e := &producer.PublishError{}
	for i, m := range messages {
		e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no room")})
	}
	return e
}

// start runs a relay whose metrics the reader reads, and returns what stops it and waits for its end.
func start(t *testing.T, s outbox.Store, reader sdkmetric.Reader) (stop func()) {
	t.Helper()
	r, err := outbox.NewRelay(s, broker{}, outbox.Config{
		Logger: slog.New(slog.DiscardHandler), MaxAttempts: 1,
		PublishTimeout: 100 * time.Millisecond, Lease: 300 * time.Millisecond,
		Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	}
}

// after lets virtual time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A death that cannot be recorded is none: the row comes again.
func TestRelay_CountsADeathWhenItIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, s := sdkmetric.NewManualReader(), newStore()
		s.set(true)
		stop := start(t, s, reader)
		after(10 * time.Second)
		if n := deaths(t, reader); n != 0 {
			t.Errorf("%d deaths while none could be recorded", n)
		}
		s.set(false)
		after(10 * time.Second)
		stop()
		if n := deaths(t, reader); n != 2 || s.dead() != 2 {
			t.Errorf("%d deaths are counted, of %d; want 2", n, s.dead())
		}
	})
}

// inspected answers slowly.
type inspected struct {
	*store
	outbox.Inspector
}

func (inspected) Stats(ctx context.Context) (outbox.Stats, error) {
	<-ctx.Done()
	return outbox.Stats{}, ctx.Err()
}

func TestRelay_ACountThatHangsDoesNotHoldUpItsStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		stop := start(t, inspected{store: &store{}}, reader)
		after(time.Second)
		began := time.Now()
		deaths(t, reader)
		stop()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("collecting and stopping took %v", took)
		}
	})
}
