package observe_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/oncemill/oncemill/examples/internal/observe"
)

// A collector notes who sends it spans and metrics.
type collector struct {
	mu   sync.Mutex
	seen []string // "spans NAME", "metrics NAME"
	ids  map[string]bool
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var traces collectortrace.ExportTraceServiceRequest
	var metrics collectormetrics.ExportMetricsServiceRequest
	switch r.URL.Path {
	case "/v1/traces":
		if proto.Unmarshal(body, &traces) == nil {
			for _, s := range traces.ResourceSpans {
				c.note("spans", s.Resource)
			}
		}
	case "/v1/metrics":
		if proto.Unmarshal(body, &metrics) == nil {
			for _, m := range metrics.ResourceMetrics {
				c.note("metrics", m.Resource)
			}
		}
	}
}

func (c *collector) note(what string, from *resourcev1.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range from.Attributes {
		switch a.Key {
		case "service.name":
			c.seen = append(c.seen, what+" "+a.Value.GetStringValue())
		case "service.instance.id":
			c.ids[a.Value.GetStringValue()] = true
		}
	}
}

// One test, as the environment and OpenTelemetry's providers are global.
func TestStart_SendsOnlyWhereTheEnvironmentSays(t *testing.T) {
	c := &collector{ids: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()

	play := func(name string) int {
		t.Helper()
		reader := metric.NewManualReader()
		stop, err := observe.Start(t.Context(), name, reader)
		if err != nil {
			t.Fatal(err)
		}
		ctx, span := otel.Tracer("test").Start(t.Context(), "work")
		counter, err := otel.Meter("test").Int64Counter("work")
		if err != nil {
			t.Fatal(err)
		}
		counter.Add(ctx, 1)
		span.End()
		var data metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		stop(ended)
		return len(data.ScopeMetrics)
	}

	if n := play("silent"); n != 1 {
		t.Errorf("without an endpoint the reader got %d scopes, want 1", n)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	if n := play("loud"); n != 1 {
		t.Errorf("with an endpoint the reader got %d scopes, want 1", n)
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	t.Setenv("OTEL_SERVICE_NAME", "renamed")
	play("loud")
	t.Setenv("OTEL_SDK_DISABLED", "true")
	play("disabled")
	c.mu.Lock()
	defer c.mu.Unlock()
	if got, want := strings.Join(c.seen, ", "), "spans loud, metrics loud, metrics renamed"; got != want {
		t.Errorf("the collector got %s, want %s", got, want)
	}
	if len(c.ids) == 0 {
		t.Error("instances cannot be told apart")
	}
}
