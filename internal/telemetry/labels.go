package telemetry

import (
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Labels are the attributes of a measurement, in the forms in which the API takes them: to make them costs more than
// the measurement.
type labels struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newLabels(attributes ...attribute.KeyValue) *labels {
	set := metric.WithAttributeSet(attribute.NewSet(attributes...))
	return &labels{[]metric.AddOption{set}, []metric.RecordOption{set}}
}

// maxKept bounds how many sources and destinations are told apart. Metrics with more would be of no use: a user whose
// destinations have no end gets one series for the rest.
const maxKept = 1000

// A table keeps what is made once for each key, up to maxKept of them, and one for all others. It is safe for
// concurrent use.
type table[K comparable, V any] struct {
	mu    sync.RWMutex
	known map[K]V
	rest  V
	full  bool
}

// of returns what belongs to a key. The key is made anew, by own, before it is kept: its parts may be pieces of a
// message.
func (t *table[K, V]) of(key K, own func(K) K, rest K, build func(K) V) V {
	t.mu.RLock()
	found, ok := t.known[key]
	t.mu.RUnlock()
	if ok {
		return found
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.known[key]; ok {
		return found
	}
	if len(t.known) >= maxKept {
		if !t.full {
			t.rest, t.full = build(rest), true
		}
		return t.rest
	}
	if t.known == nil {
		t.known = map[K]V{}
	}
	key = own(key)
	made := build(key)
	t.known[key] = made
	return made
}

// each calls fn for all that is kept.
func (t *table[K, V]) each(fn func(V)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, v := range t.known {
		fn(v)
	}
	if t.full {
		fn(t.rest)
	}
}

// A scope is what deliveries have in common.
type scope struct{ group, handler, system, destination string }

func (s scope) own() scope {
	return scope{
		strings.Clone(s.group), strings.Clone(s.handler), strings.Clone(s.system), strings.Clone(s.destination),
	}
}

// attributes: an empty system or destination says that the guard was used without package consumer.
func (s scope) attributes(more ...attribute.KeyValue) []attribute.KeyValue {
	all := append(more, keyGroup.String(text(s.group)), keyHandler.String(text(s.handler)))
	if s.system != "" {
		all = append(all, keySystem.String(text(s.system)))
	}
	if s.destination != "" {
		all = append(all, keyDestination.String(text(s.destination)))
	}
	return all
}

// A source is a scope with the attributes of its measurements, each made when it is needed first.
type source struct {
	scope
	plain    *labels
	named    *labels // without system and destination
	claims   [outcomes][details]atomic.Pointer[labels]
	shadows  [outcomes]atomic.Pointer[labels]
	runs     [failures]atomic.Pointer[labels]
	ends     [ends]atomic.Pointer[labels]
	active   atomic.Int64 // handlers at work
	observed []metric.ObserveOption
	spanName string

	start, startRoot []trace.SpanStartOption // what spans begin with
}

var otherScope = scope{group: other, handler: other, system: other, destination: other}

// sources are the sources of a meter.
type sources struct{ table[scope, *source] }

func (t *sources) source(s scope) *source { return t.of(s, scope.own, otherScope, newSource) }

func newSource(s scope) *source {
	start := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		keySystem.String(s.system), keyOpName.String("process"), keyOpType.String("process"),
		keyDestination.String(text(s.destination)),
	)}
	return &source{
		scope: s, plain: newLabels(s.attributes()...),
		observed:  []metric.ObserveOption{metric.WithAttributes(s.attributes()...)},
		named:     newLabels(scope{group: s.group, handler: s.handler}.attributes()...),
		spanName:  "process " + text(s.destination),
		start:     start,
		startRoot: append(start[:len(start):len(start)], trace.WithNewRoot()),
	}
}

// claim returns the attributes of an outcome.
func (s *source) claim(o Outcome, d Detail) *labels {
	return cached(&s.claims[o][d], func() *labels {
		more := []attribute.KeyValue{keyOutcome.String(o.String())}
		switch {
		case d == NoDetail:
		case o == Bypassed:
			more = append(more, keyBypass.String(d.String()))
		default:
			more = append(more, keyCause.String(d.String()))
		}
		return newLabels(s.attributes(more...)...)
	})
}

func (s *source) shadow(o Outcome) *labels {
	return cached(&s.shadows[o], func() *labels {
		return newLabels(keyGroup.String(s.group), keyHandler.String(s.handler), keyOutcome.String(o.String()))
	})
}

// run returns the attributes of a handler's run.
func (s *source) run(f Failure) *labels {
	return cached(&s.runs[f], func() *labels {
		more := []attribute.KeyValue{keyOpName.String("process")}
		if f != NoFailure {
			more = append(more, keyErrorType.String(f.String()))
		}
		return newLabels(s.attributes(more...)...)
	})
}

// end returns the attributes of an end without success.
func (s *source) end(e End) *labels {
	return cached(&s.ends[e], func() *labels { return newLabels(s.attributes(keyResult.String(e.String()))...) })
}

func cached(place *atomic.Pointer[labels], build func() *labels) *labels {
	if found := place.Load(); found != nil {
		return found
	}
	made := build()
	place.Store(made)
	return made
}
