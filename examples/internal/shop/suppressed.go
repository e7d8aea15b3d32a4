package shop

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill/examples/internal/observe"
)

// metrics reads what Oncemill counts, as a dashboard would.
type metrics struct {
	reader *metric.ManualReader
	stop   func(context.Context)
}

func newMetrics(ctx context.Context, name string) (metrics, error) {
	reader := metric.NewManualReader()
	stop, err := observe.Global(ctx, name, reader)
	return metrics{reader, stop}, err
}

// suppressed is how many deliveries were answered with a stored outcome, in this process.
func (m metrics) suppressed(ctx context.Context) (int, error) {
	var data metricdata.ResourceMetrics
	if err := m.reader.Collect(ctx, &data); err != nil {
		return 0, err
	}
	total := 0
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "oncemill.claims" {
				continue
			}
			for _, point := range sum.DataPoints {
				switch outcome, _ := point.Attributes.Value("oncemill.outcome"); {
				case outcome.AsString() == "duplicate_in_progress": // it is held, and counted again when it is answered
				case strings.HasPrefix(outcome.AsString(), "duplicate_"):
					total += int(point.Value)
				}
			}
		}
	}
	return total, nil
}
