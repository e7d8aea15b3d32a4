package pgwal_test

import (
	"context"
	"strings"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

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
	reader := sdkmetric.NewManualReader()
	g := newRig(t, func(c *settings) {
		c.MaxAttempts = 1
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
	if n := counted(t, reader, "oncemill.outbox.deaths", "oncemill_outbox"); n != 0 {
		t.Errorf("%d deaths while none is recorded", n)
	}
	g.exec(`DELETE FROM full_disk`)
	g.awaitConfirmed()
	stop()
	dead := value[int64](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`)
	if n := counted(t, reader, "oncemill.outbox.deaths", "oncemill_outbox"); n != 3 || dead != 3 {
		t.Errorf("%d deaths, %d dead rows; want 3", n, dead)
	}
}

func TestRelay_ShowsTheRowsOfItsTable(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	g := newRig(t, func(c *settings) {
		c.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	g.broker.set(func(ctx context.Context, _ []producer.Message) error { <-ctx.Done(); return ctx.Err() })
	g.write(numbered(3)...)
	schema := value[string](g, `SELECT current_schema()`)
	g.start(func(c *settings) { c.Schema = schema })
	until(t, "the rows", func() bool { return counted(t, reader, "oncemill.outbox.pending", schema+".oncemill_outbox") == 3 })
}
