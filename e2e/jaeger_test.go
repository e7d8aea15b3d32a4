package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// A jaeger is a real Jaeger v2, with its traces in memory.
type jaeger struct{ otlp, query string }

// jaegerVariable names the program. `make e2e JAEGER=path` sets it.
const jaegerVariable = "ONCEMILL_TEST_JAEGER"

func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	program := os.Getenv(jaegerVariable)
	if program == "" {
		const how = "no Jaeger v2 was named: traces were looked at through a receiver of the test only (make e2e JAEGER=path-to-binary)"
		note(t, "SKIPPED (optional): "+how)
		t.Skip("SKIPPED: " + how)
	}
	program, err := filepath.Abs(program)
	if err != nil {
		t.Fatal(err)
	}
	j := &jaeger{otlp: freeAddress(t), query: freeAddress(t)}
	config := filepath.Join(t.TempDir(), "jaeger.yaml")
	text := fmt.Sprintf(`
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}
  telemetry:
    metrics: {level: none}
    logs: {level: warn}
extensions:
  jaeger_storage: {backends: {memory: {memory: {max_traces: 10000}}}}
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: %q}
    grpc: {endpoint: %q}
receivers:
  otlp: {protocols: {http: {endpoint: %q}}}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
`, j.query, freeAddress(t), j.otlp)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	startProgram(t, "http://"+j.query+"/api/services", program, "--config", config)
	note(t, "jaeger "+program)
	return j
}

func (j *jaeger) endpoint() string { return "http://" + j.otlp }

// trace asks Jaeger's query API. It knows references only: of a parent and a link to the same span it makes one, called
// FOLLOWS_FROM, and it keeps no attributes of links.
func (j *jaeger) trace(t *testing.T, id string) []span {
	t.Helper()
	resp, err := http.Get("http://" + j.query + "/api/traces/" + id)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil
	}
	var answer struct {
		Data []struct {
			Spans []struct {
				TraceID, SpanID, OperationName string
				References                     []struct{ RefType, TraceID, SpanID string }
				Tags                           []struct {
					Key   string
					Value any
				}
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatalf("Jaeger: %s: %v", resp.Status, err)
	}
	var all []span
	for _, d := range answer.Data {
		for _, s := range d.Spans {
			got := span{trace: s.TraceID, id: s.SpanID, name: s.OperationName, attributes: map[string]string{}}
			for _, tag := range s.Tags {
				got.attributes[tag.Key] = fmt.Sprint(tag.Value)
			}
			for _, r := range s.References {
				if r.TraceID == s.TraceID {
					got.parent = r.SpanID
				} else {
					got.links = append(got.links, link{trace: r.TraceID, id: r.SpanID})
				}
			}
			all = append(all, got)
		}
	}
	return all
}
