package shop

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A Claim counts deliveries that were answered in one way.
type Claim struct {
	Group, Handler, Outcome, Cause string
	Count                          int64
}

// Claims reads the counter oncemill.claims.
func Claims(ctx context.Context, reader *metric.ManualReader) (claims []Claim, err error) {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		return nil, err
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "oncemill.claims" {
				continue
			}
			for _, point := range sum.DataPoints {
				is := func(key attribute.Key) string {
					v, _ := point.Attributes.Value(key)
					return v.AsString()
				}
				claims = append(claims, Claim{is("messaging.consumer.group.name"), is("oncemill.handler"),
					is("oncemill.outcome"), is("oncemill.duplicate.cause"), point.Value})
			}
		}
	}
	return claims, nil
}

// Outcomes adds claims up, by their outcome.
func Outcomes(claims []Claim) map[string]int {
	sums := map[string]int{}
	for _, c := range claims {
		sums[c.Outcome] += int(c.Count)
	}
	return sums
}
