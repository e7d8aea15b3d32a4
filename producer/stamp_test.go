package producer_test

import (
	"context"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/producer"
)

func TestMain(m *testing.M) {
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	m.Run()
}

// traced returns a context with a span, and its traceparent.
func traced(t testing.TB, span byte) (context.Context, string) {
	t.Helper()
	sc := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{span}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	return ctx, "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
}

func TestStamp_GivesIDAndTraceContextOnce(t *testing.T) {
	t.Parallel()
	first, traceparent := traced(t, 1)
	second, _ := traced(t, 2)
	m := producer.Message{Topic: "orders", Payload: []byte("x")}
	if err := producer.Stamp(first, &m); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7`).MatchString(m.ID) {
		t.Errorf("ID %q is no UUIDv7", m.ID)
	}
	want := producer.Header{"oncemill-id": m.ID, "traceparent": traceparent}
	if !reflect.DeepEqual(m.Header, want) {
		t.Errorf("header %v, want %v", m.Header, want)
	}
	again := m
	if err := producer.Stamp(second, &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, m) {
		t.Errorf("stamping again made %+v of %+v", again, m)
	}
}

func TestStamp_KeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	ctx, _ := traced(t, 1)
	shared := producer.Header{"color": "blue", "Traceparent": "another client's", "Oncemill-Id": "o1"}
	before := maps.Clone(shared)
	for _, id := range []string{"", "o1"} {
		m := producer.Message{ID: id, Header: shared}
		if err := producer.Stamp(ctx, &m); err != nil {
			t.Fatal(err)
		}
		want := producer.Header{"color": "blue", "Traceparent": "another client's", "oncemill-id": "o1"}
		if !reflect.DeepEqual(m.Header, want) || m.ID != "o1" {
			t.Errorf("ID %q, header %v; want o1, %v", m.ID, m.Header, want)
		}
	}
	if !reflect.DeepEqual(shared, before) {
		t.Errorf("the caller's header was written to: %v, before %v", shared, before)
	}
}

func TestStamp_WithoutSpanThereIsNoTraceContext(t *testing.T) {
	t.Parallel()
	m := producer.Message{ID: "o1"}
	if err := producer.Stamp(t.Context(), &m); err != nil || len(m.Header) != 1 {
		t.Errorf("header %v, error %v", m.Header, err)
	}
}

func TestStamp_UnusableIDIsNamedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		id     string
		header producer.Header
		field  string
	}{
		{"oversized", long, nil, "Message.ID"},
		{"binary", "\xff", nil, "Message.ID"},
		{"control character", "a\r\nNats-Rollup: all", nil, "Message.ID"},
		{"space around", "a ", nil, "Message.ID"},
		{"looks foreign", "~a", nil, "Message.ID"},
		{"unknown kind", "~xx,a,b", nil, "Message.ID"},
		{"too many parts", "~ce,a,b,c", nil, "Message.ID"},
		{"parts not escaped", "~ce,a,b%", nil, "Message.ID"},
		{"bad header", "", producer.Header{"oncemill-id": "\x7f"}, "header oncemill-id"},
		{"empty header", "", producer.Header{"oncemill-id": ""}, "header oncemill-id"},
		{"disagree", "a", producer.Header{"oncemill-id": "b"}, "header oncemill-id"},
		{"header empty, ID not", "a", producer.Header{"oncemill-id": ""}, "header oncemill-id"},
		{"two purposes", "a", producer.Header{"Oncemill-Purpose": "retry", "ONCEMILL-PURPOSE": "replay"}, "header oncemill-purpose"},
		{"two generations", "a", producer.Header{"Oncemill-Generation": "1", "ONCEMILL-GENERATION": "2"}, "header oncemill-generation"},
		{"two spellings", "a", producer.Header{"OncemillID": "", "ONCEMILL-ID": "a", "Oncemill-Id": "b"}, "header oncemill-id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := producer.Message{ID: tc.id, Header: maps.Clone(tc.header)}
			wantInvalid(t, producer.Stamp(t.Context(), &m), tc.field)
			if want := (producer.Message{ID: tc.id, Header: tc.header}); !reflect.DeepEqual(m, want) {
				t.Errorf("the message was changed to %+v from %+v", m, want)
			}
		})
	}
}

func TestHeader_GetDoesNotDependOnTheOrderOfAMap(t *testing.T) {
	t.Parallel()
	for range 100 { // each map has an order of its own
		h := producer.Header{"content-Type": "c", "Content-Type": "b", "CONTENT-TYPE": "a", "other": "x"}
		if got := h.Get("content-type"); got != "a" {
			t.Fatalf("got %q, want the one that is first in byte order", got)
		}
		if got := h.Get("Content-Type"); got != "b" {
			t.Fatalf("got %q, want the exact match", got)
		}
	}
}

func TestOutgoing_IsWhatGoesOnTheWire(t *testing.T) {
	t.Parallel()
	in := producer.Message{
		ID: "o1", Topic: "orders", Key: "k", NotBefore: time.Now().Add(-time.Second),
		Header: producer.Header{"Oncemill-Name": "receipt", "oncemill-rerun": "7", "color": "blue"},
	}
	want := in
	want.Header = producer.Header{"oncemill-id": "o1", "oncemill-rerun": "7", "color": "blue"}
	got, err := producer.Outgoing(t.Context(), in)
	if !reflect.DeepEqual(got, want) || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if len(in.Header) != 3 {
		t.Errorf("the caller's header was written to: %v", in.Header)
	}
}

func TestOutgoing_StampsACopyOfTheHeader(t *testing.T) {
	traced, traceparent := traced(t, 1)
	silent := producer.WithPropagator(traced, propagation.NewCompositeTextMapPropagator())
	stamped := producer.Header{"oncemill-id": "o1", "color": "blue", "traceparent": "mine"}
	for name, tc := range map[string]struct {
		ctx      context.Context
		in, want producer.Header
	}{
		"nothing to change":         {silent, stamped, stamped},
		"it has trace context":      {traced, stamped, stamped},
		"trace context to add":      {traced, producer.Header{"oncemill-id": "o1"}, producer.Header{"oncemill-id": "o1", "traceparent": traceparent}},
		"the ID to add":             {silent, producer.Header{"color": "blue"}, producer.Header{"oncemill-id": "o1", "color": "blue"}},
		"another spelling":          {silent, producer.Header{"oncemill-id": "o1", "ONCEMILL-ID": "o1"}, producer.Header{"oncemill-id": "o1"}},
		"a name that is not sent":   {silent, producer.Header{"oncemill-id": "o1", "oncemill-name": "x"}, producer.Header{"oncemill-id": "o1"}},
		"a name not quite of ours":  {silent, producer.Header{"oncemill-id": "o1", "oncemill-Purpoſe": "x"}, producer.Header{"oncemill-id": "o1", "oncemill-Purpoſe": "x"}},
		"a header without anything": {silent, nil, producer.Header{"oncemill-id": "o1"}},
	} {
		before := maps.Clone(tc.in)
		got, err := producer.Outgoing(tc.ctx, producer.Message{ID: "o1", Topic: "orders", Header: tc.in})
		if !reflect.DeepEqual(got.Header, tc.want) || err != nil {
			t.Errorf("%s: header %v, %v; want %v", name, got.Header, err, tc.want)
		}
		got.Header["written"] = "afterwards"
		if !reflect.DeepEqual(tc.in, before) {
			t.Errorf("%s: the caller's header was written to: %v, before %v", name, tc.in, before)
		}
	}
}

func TestOutgoing_RefusesWhatCannotBeSentNow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		m     producer.Message
		field string
	}{
		{producer.Message{ID: "o1"}, "Message.Topic"},
		{producer.Message{Topic: "t"}, "Message.ID"},
		{producer.Message{ID: "\x00", Topic: "t"}, "Message.ID"},
		{producer.Message{ID: "o1", Topic: "t", NotBefore: time.Now().Add(time.Hour)}, "Message.NotBefore"},
	} {
		_, err := producer.Outgoing(t.Context(), tc.m)
		wantInvalid(t, err, tc.field)
	}
}

func TestDeriveID_DependsOnItsArgumentsOnly(t *testing.T) {
	t.Parallel()
	if got, want := producer.DeriveID("orders", "4711"), "ab4edd01-2d39-858d-9fb3-3f3add5c119f"; got != want {
		t.Errorf("got %s, want %s for ever", got, want)
	}
	for _, args := range [][]string{{""}, {"", "a"}, {"orders"}} {
		func() {
			defer func() {
				if r, ok := recover().(string); !ok || !strings.Contains(r, "DeriveID") {
					t.Errorf("DeriveID(%q) did not panic", args)
				}
			}()
			producer.DeriveID(args[0], args[1:]...)
		}()
	}
}

func TestPublishError_NamesTheMessages(t *testing.T) {
	t.Parallel()
	err := &producer.PublishError{Failures: []producer.Failure{{Index: 3, Err: producer.ErrNoID}, {Index: 4, ID: "o1", Err: context.Canceled}}}
	want := "publish message 3 of the call, which has no ID: producer: message has no ID (and 1 more)"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
