package e2e_test

import (
	"encoding/hex"
	"io"
	"net/http"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A span, as a trace store knows it.
type span struct {
	trace, id, parent string
	name              string
	attributes        map[string]string
	links             []link
}

type link struct{ trace, id, kind string }

// A traceStore is where spans are sent to by OTLP over HTTP, and asked for by trace.
type traceStore interface {
	endpoint() string // such as http://127.0.0.1:4318
	trace(t *testing.T, id string) []span
}

// A receiver is an OTLP endpoint in this process that keeps spans.
type receiver struct {
	address string
	mu      sync.Mutex
	spans   map[string][]span
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{spans: map[string][]span{}}
	r.address = serve(t, r)
	return r
}

func (r *receiver) endpoint() string { return "http://" + r.address }

func (r *receiver) trace(_ *testing.T, id string) []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spans[id]
}

// ServeHTTP takes an export request in protobuf.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var request collector.ExportTraceServiceRequest
	body, err := io.ReadAll(req.Body)
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "not an OTLP export of spans", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				got := span{
					trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId),
					name: s.Name, attributes: map[string]string{},
				}
				for _, a := range s.Attributes {
					got.attributes[a.Key] = a.Value.GetStringValue()
				}
				for _, l := range s.Links {
					to := link{trace: hex.EncodeToString(l.TraceId), id: hex.EncodeToString(l.SpanId)}
					for _, a := range l.Attributes {
						if a.Key == "oncemill.link.type" {
							to.kind = a.Value.GetStringValue()
						}
					}
					got.links = append(got.links, to)
				}
				r.spans[got.trace] = append(r.spans[got.trace], got)
			}
		}
	}
}
