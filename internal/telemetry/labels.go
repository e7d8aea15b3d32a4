package telemetry

import (
	"strings"
	"sync"

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

// A table keeps what is made once for each key. It is safe for concurrent use.
type table[K comparable, V any] struct {
	mu    sync.RWMutex
	known map[K]V
}

func (t *table[K, V]) get(key K) (found V, size int, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	found, ok = t.known[key]
	return found, len(t.known), ok
}

// add returns what is kept for a key: what was made, unless another goroutine was first.
func (t *table[K, V]) add(key K, made V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.known[key]; ok {
		return found
	}
	if t.known == nil {
		t.known = map[K]V{}
	}
	t.known[key] = made
	return made
}

// maxKept bounds how many scopes are told apart. Metrics with more would be of no use: a user whose destinations have
// no end gets one series for the rest.
const maxKept = 1000

// A scope is what deliveries, or messages that are sent, have in common. Empty values are no attributes: a guard that
// is used without package consumer has no system and destination.
type scope struct{ group, handler, system, destination string }

// own is the same, of texts that are no pieces of a message.
func (s scope) own() scope {
	return scope{
		strings.Clone(s.group), strings.Clone(s.handler), strings.Clone(s.system), strings.Clone(s.destination),
	}
}

// rest is the scope of what is not told apart.
func (s scope) rest() scope {
	for _, name := range [...]*string{&s.group, &s.handler, &s.destination} {
		if *name != "" {
			*name = other
		}
	}
	return s
}

// Sources are the sources of a meter.
type sources struct{ table[scope, *source] }

func (t *sources) of(s scope) *source {
	found, size, ok := t.get(s)
	if ok {
		return found
	}
	if rest := s.rest(); size >= maxKept && s != rest {
		return t.of(rest)
	}
	s = s.own()
	name := text(s.destination)
	attributes := trace.WithAttributes(keySystem.String(s.system), keyOpName.String("process"),
		keyOpType.String("process"), keyDestination.String(name))
	return t.add(s, &source{scope: s, plain: s.labels([3]pair{}), span: "process " + name,
		start: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), attributes}})
}

// A source is a scope with the attributes of its measurements, each made when it is needed first.
type source struct {
	scope
	plain *labels // of the scope alone
	made  table[[3]pair, *labels]

	span  string // the name of a delivery's span
	start []trace.SpanStartOption
}

// A pair is an attribute as a key of a map.
type pair struct {
	key   attribute.Key
	value string
}

// with returns the attributes of the scope and up to three more, without those that are empty. The set of the latter is
// closed: they are no texts of others.
func (s *source) with(more ...attribute.KeyValue) *labels {
	var key [3]pair
	for i, a := range more {
		key[i] = pair{a.Key, a.Value.AsString()}
	}
	if found, _, ok := s.made.get(key); ok {
		return found
	}
	return s.made.add(key, s.labels(key))
}

func (s scope) labels(more [3]pair) *labels {
	var all []attribute.KeyValue
	for _, p := range append(more[:], pair{keyGroup, s.group}, pair{keyHandler, s.handler}, pair{keySystem, s.system},
		pair{keyDestination, s.destination}) {
		if p.value != "" {
			all = append(all, p.key.String(text(p.value)))
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	return &labels{[]metric.AddOption{set}, []metric.RecordOption{set}}
}
