package http_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/idempotencykey"
	"github.com/oncemill/oncemill/producer/webhook"
)

// A bench is OpenTelemetry's SDK in memory.
type bench struct {
	oncemill.Telemetry
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newBench() *bench {
	b := &bench{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	b.Telemetry = oncemill.Telemetry{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans)),
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader)),
		Propagator:     propagation.TraceContext{},
	}
	return b
}

func (b *bench) policy() oncemill.Policy {
	return oncemill.Policy{Logger: keytest.Quiet(), Telemetry: b.Telemetry}
}

// shop opens an inbox and an outbox in one file of SQLite.
func shop(t *testing.T) (*sqlitestore.Store, *sqliteoutbox.Outbox) {
	t.Helper()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Migrate(t.Context()), box.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	return store, box
}

// A line is a broker that hands what it is given to a processor at once.
type line struct {
	once    *consumer.Processor
	handled atomic.Int64
}

func newLine(t *testing.T, p oncemill.Policy) *line {
	t.Helper()
	once, err := consumer.New(keytest.NewMemory(t), consumer.Config{Group: "billing", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return &line{once: once}
}

func (l *line) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		d := consumer.Delivery{Topic: m.Topic, Header: m.Header.With(producer.HeaderID, m.ID), Payload: m.Payload,
			Handler: "charge"}
		l.once.Process(context.Background(), d, func(context.Context) error {
			l.handled.Add(1)
			return nil
		})
	}
	return nil
}

// relays publishes what an outbox has until a line has handled so many messages.
func relays(t *testing.T, b *bench, box *sqliteoutbox.Outbox, l *line, messages int64) {
	t.Helper()
	relay, err := outbox.NewRelay(box, l, outbox.Config{Telemetry: b.Telemetry, Logger: keytest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	keytest.Until(t, "all messages are handled", func() bool { return l.handled.Load() >= messages })
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// traces are the names of spans by trace.
func (b *bench) traces() map[trace.TraceID][]string {
	found := map[trace.TraceID][]string{}
	for _, s := range b.spans.Ended() {
		id := s.SpanContext().TraceID()
		found[id] = append(found[id], s.Name())
	}
	return found
}

// Nothing around the middlewares makes spans.
func TestTraces_EachRequestHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	const requests = 100
	body := "{}"
	verifier, err := webhook.GitHub(hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]struct {
		handler func(*oncemill.Guard, producer.Publisher) (http.Handler, error)
		request func(i int) *http.Request
	}{
		"POST /payments": {
			func(g *oncemill.Guard, enqueue producer.Publisher) (http.Handler, error) {
				keys, err := idempotencykey.New(g, idempotencykey.Config{Account: idempotencykey.SingleTenant})
				if err != nil {
					return nil, err
				}
				return keys.WrapFunc(func(w http.ResponseWriter, r *http.Request) error {
					w.WriteHeader(http.StatusCreated)
					return enqueue.Publish(r.Context(), producer.Message{Topic: "payments", Payload: []byte(body)})
				}), nil
			},
			func(i int) *http.Request {
				r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
				r.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
				return r
			},
		},
		"POST /hooks": {
			func(g *oncemill.Guard, enqueue producer.Publisher) (http.Handler, error) {
				return webhook.New(g, enqueue, webhook.Config{Sender: "github", Verifier: verifier, Topic: "payments"})
			},
			func(i int) *http.Request {
				r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
				r.Header.Set("X-GitHub-Delivery", fmt.Sprint("d", i))
				r.Header.Set("X-Hub-Signature-256", "sha256="+signature(body))
				return r
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			store, box := shop(t)
			handler, err := of.handler(keytest.NewGuard(t, store.Inbox(), b.policy()),
				webhook.PublisherFunc(func(ctx context.Context, m ...producer.Message) error {
					return box.InSQL(sqlitestore.Tx(ctx)).Publish(ctx, m...)
				}))
			if err != nil {
				t.Fatal(err)
			}
			mux := http.NewServeMux()
			mux.Handle(name, handler)
			for i := range requests {
				w := httptest.NewRecorder()
				if mux.ServeHTTP(w, of.request(i)); w.Code >= 300 {
					t.Fatalf("status %d: %s", w.Code, w.Body)
				}
			}
			relays(t, b, box, newLine(t, b.policy()), requests)
			complete := 0
			for id, names := range b.traces() {
				count := func(name string) int {
					return len(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n != name }))
				}
				switch {
				case count(name) == 1 && count("send payments") == 1 && count("process payments") == 1:
					complete++
				case count("oncemill.outbox.relay") != len(names):
					t.Errorf("trace %s has the spans %v", id, names)
				}
			}
			if complete != requests {
				t.Errorf("%d traces hold request, send and processing, want %d", complete, requests)
			}
		})
	}
}

// The span says what the conventions ask for. One that is there already stays the only one.
func TestTraces_OfARequest(t *testing.T) {
	t.Parallel()
	b := newBench()
	m := keytest.NewMiddleware(t, keytest.NewGuard(t, keytest.NewMemory(t), b.policy()), idempotencykey.Config{})
	mux := http.NewServeMux()
	mux.Handle("POST /payments/{id}", m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Panic") != "" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusBadGateway)
	})))
	send := func(ctx context.Context, header ...string) (made []sdktrace.ReadOnlySpan) {
		before := len(b.spans.Ended())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments/17", nil)
		r.Header.Set("Idempotency-Key", strconv.Itoa(len(b.spans.Started())))
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		func() {
			defer func() { _ = recover() }()
			mux.ServeHTTP(httptest.NewRecorder(), r)
		}()
		return b.spans.Ended()[before:]
	}
	caller := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	got := send(t.Context(), "Traceparent", caller)
	if len(got) != 1 || got[0].Parent().SpanID().String() != "00f067aa0ba902b7" || got[0].SpanKind() != trace.SpanKindServer {
		t.Fatalf("spans %v, want one under the caller's", got)
	}
	said := map[string]string{}
	for _, a := range got[0].Attributes() {
		said[string(a.Key)] = a.Value.String()
	}
	for key, want := range map[string]string{
		"http.request.method": "POST", "http.route": "/payments/{id}", "url.scheme": "http",
		"http.response.status_code": "502", "error.type": "502", "oncemill.outcome": "claimed", "url.path": "",
	} {
		if said[key] != want {
			t.Errorf("%s is %q, want %q", key, said[key], want)
		}
	}
	if got := send(t.Context(), "Panic", "1"); len(got) != 1 || got[0].Parent().IsValid() {
		t.Errorf("spans %v of a panic, want one that is a root", got)
	}
	ctx, outside := b.TracerProvider.Tracer("outside").Start(t.Context(), "request")
	if got := send(ctx, "Traceparent", caller); len(got) != 0 {
		t.Errorf("spans %v beside that of another middleware", got)
	}
	outside.End()
	remote := trace.ContextWithRemoteSpanContext(t.Context(), outside.SpanContext())
	if got := send(remote, "Traceparent", caller); len(got) != 1 || got[0].Parent().SpanID() != outside.SpanContext().SpanID() {
		t.Errorf("spans %v, want one under the context that somebody read from the request", got)
	}
}

func signature(body string) string {
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

const hookSecret = "sixteen bytes or more"

func TestRefusals_AreCountedByReason(t *testing.T) {
	t.Parallel()
	b := newBench()
	verifier, err := webhook.Slack(hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	down := false
	hooks, err := webhook.New(keytest.NewGuard(t, keytest.NewMemory(t), b.policy()),
		webhook.PublisherFunc(func(context.Context, ...producer.Message) error {
			if down {
				return errors.New("away")
			}
			return nil
		}), webhook.Config{Sender: "slack", Verifier: verifier, Topic: "hooks", MaxBody: 100})
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, body string, age time.Duration, sign func(string) string) {
		r := httptest.NewRequest(method, "/hooks", strings.NewReader(body))
		at := strconv.FormatInt(time.Now().Add(-age).Unix(), 10)
		r.Header.Set("X-Slack-Request-Timestamp", at)
		r.Header.Set("X-Slack-Signature", "v0="+sign("v0:"+at+":"+body))
		hooks.ServeHTTP(httptest.NewRecorder(), r)
	}
	wrong := func(string) string { return strings.Repeat("00", 32) }
	send(http.MethodPost, `{"event_id":"e1"}`, 0, signature) // 200
	send(http.MethodGet, "", 0, signature)
	send(http.MethodPost, strings.Repeat("a", 101), 0, signature)
	send(http.MethodPost, `{"event_id":"e2"}`, 0, wrong)
	send(http.MethodPost, `{"event_id":"e3"}`, 0, wrong)
	send(http.MethodPost, `{"event_id":"e4"}`, time.Hour, signature)
	send(http.MethodPost, `{}`, 0, signature)
	send(http.MethodPost, `{"event_id":"e1","a":1}`, 0, signature)
	down = true
	send(http.MethodPost, `{"event_id":"e5"}`, 0, signature)
	got := map[string]int64{}
	var data metricdata.ResourceMetrics
	if err := b.reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name != "oncemill.webhook.refusals" {
			continue
		}
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			reason, _ := p.Attributes.Value("error.type")
			sender, _ := p.Attributes.Value("oncemill.handler")
			got[sender.AsString()+" "+reason.AsString()] = p.Value
		}
	}
	want := map[string]int64{
		"slack method": 1, "slack too_large": 1, "slack signature": 2, "slack too_old": 1, "slack unusable": 1,
		"slack other_content": 1, "slack unavailable": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
