package pgwal_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

// counted returns what a counter or a gauge of an outbox says.
func counted(t *testing.T, reader *sdkmetric.ManualReader, name, outbox string) (n int64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			var points []metricdata.DataPoint[int64]
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = d.DataPoints
			case metricdata.Gauge[int64]:
				points = d.DataPoints
			}
			for _, p := range points {
				if v, _ := p.Attributes.Value("oncemill.outbox.table"); v.AsString() == outbox {
					n += p.Value
				}
			}
		}
	}
	return n
}

// A death that cannot be recorded is none: the message comes again.
func TestRelay_CountsADeathWhenItIsRecorded(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, configure func(*pgwal.Config)) {
		reader := sdkmetric.NewManualReader()
		g := newRig(t, configure, func(c *pgwal.Config) {
			c.Name, c.MaxAttempts = "the shop's", 1
			c.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		})
		g.exec(`CREATE TABLE full_disk (yes boolean)`)
		g.exec(`INSERT INTO full_disk VALUES (true)`)
		g.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.dead_at IS NOT NULL AND EXISTS (SELECT FROM full_disk) THEN RAISE 'disk full'; END IF; RETURN NEW; END $$`)
		g.exec(`CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION fail()`)
		g.broker.set(refuseAll)
		g.write(numbered(3)...)
		stop := g.start()
		until(t, "results that cannot be recorded", func() bool { return strings.Contains(g.log.String(), "could not be recorded yet") })
		if n := counted(t, reader, "oncemill.outbox.deaths", "the shop's"); n != 0 {
			t.Errorf("%d deaths while none is recorded", n)
		}
		g.exec(`DELETE FROM full_disk`)
		g.awaitConfirmed()
		stop()
		dead := value[int64](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`)
		if n := counted(t, reader, "oncemill.outbox.deaths", "the shop's"); n != 3 || dead != 3 {
			t.Errorf("%d deaths, %d dead rows; want 3", n, dead)
		}
	})
}

func TestRelay_ShowsTheRowsOfItsTable(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	g := newRig(t, func(c *pgwal.Config) {
		c.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	g.broker.set(func(ctx context.Context, _ []producer.Message) error { <-ctx.Done(); return ctx.Err() })
	g.write(numbered(3)...)
	schema := value[string](g, `SELECT current_schema()`)
	g.start(func(c *pgwal.Config) { c.Schema = schema })
	until(t, "the rows", func() bool { return counted(t, reader, "oncemill.outbox.pending", schema+".oncemill_outbox") == 3 })
}

// What a handler copies from the message that it got may say that this was sent again: its own is not.
func TestEmitter_AMessageIsNoResendOfAnother(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, configure func(*pgwal.Config)) {
		g := newRig(t, configure)
		var said atomic.Value
		g.broker.set(func(_ context.Context, messages []producer.Message) error {
			said.Store(messages[0].Header.Get(producer.HeaderResend) + messages[0].Header.Get("color"))
			return nil
		})
		m := message("a")
		m.Header = producer.Header{"Oncemill-Resend": "3", "color": "blue"}
		g.write(m)
		g.start()
		until(t, "the message", func() bool { return said.Load() != nil })
		if got := said.Load(); got != "blue" || m.Header["Oncemill-Resend"] != "3" {
			t.Errorf("the copy says %q, and the caller's header %v", got, m.Header)
		}
	})
}

// What users of a service say about themselves goes no further: whoever reads the log reads it.
func TestEmitter_BaggageStays(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, configure func(*pgwal.Config)) {
		g := newRig(t, configure)
		var said atomic.Value
		g.broker.set(func(_ context.Context, messages []producer.Message) error {
			said.Store(messages[0].Header.Get("baggage"))
			return nil
		})
		users, err := baggage.Parse("session=secret")
		if err != nil {
			t.Fatal(err)
		}
		ctx := producer.WithPropagator(baggage.ContextWithBaggage(t.Context(), users), propagation.Baggage{})
		tx, err := g.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.in(tx).Publish(ctx, message("a")), tx.Commit(ctx)); err != nil {
			t.Fatal(err)
		}
		g.start()
		until(t, "the message", func() bool { return said.Load() != nil })
		if got := said.Load(); got != "" {
			t.Errorf("baggage %q", got)
		}
	})
}
