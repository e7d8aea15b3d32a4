package oncemill_test

import (
	"context"
	"errors"
	"github.com/oncemill/oncemill/internal/answertest"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// lines is a log handler that records lines of a level and above.
type lines struct {
	level slog.Level

	mu    sync.Mutex
	lines []string         // messages
	attrs []map[string]any // by line
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]any{"level": r.Level}
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.Any(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines, l.attrs = append(l.lines, r.Message), append(l.attrs, attrs)
	return nil
}

func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *lines) WithGroup(string) slog.Handler { return l }

func TestGuard_SaysAtLevelDebugWhatWasHandledAndWhatWasADuplicate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelDebug}
		g := newGuard(t, newStore(t), oncemill.Policy{Logger: slog.New(log)})
		first := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
		}))
		work := func(context.Context) (dedupstore.Outcome, error) {
			time.Sleep(time.Second)
			return dedupstore.Outcome{Result: []byte("secret")}, nil
		}
		if _, err := g.Run(first, call("m1"), work); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := g.Run(t.Context(), call("m1"), work); err != nil {
			t.Fatal(err)
		}
		_, _ = g.Run(t.Context(), call("m2"), func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, errors.New("bank is away")
		})
		if want := []string{"oncemill: handled", "oncemill: duplicate suppressed"}; strings.Join(log.lines, "; ") != strings.Join(want, "; ") {
			t.Fatalf("lines %q, want %q", log.lines, want)
		}
		wantAttrs(t, log.attrs[0], map[string]any{
			"level": slog.LevelDebug, "id": "m1", "handler": key("m1").Handler, "attempt": int64(1), "took": time.Second,
			"trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000",
		})
		wantAttrs(t, log.attrs[1], map[string]any{
			"level": slog.LevelDebug, "id": "m1", "handler": key("m1").Handler, "outcome": "succeeded",
			"age": time.Minute + time.Second, "first_trace_id": "01000000000000000000000000000000",
		})
	})
}

// A shadow handles nothing.
func TestShadow_SaysOfNothingThatItWasHandled(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelDebug}
		g := newGuard(t, newStore(t), oncemill.Policy{Logger: slog.New(log), Shadow: true})
		for range 2 {
			if _, err := g.Run(t.Context(), call("m1"), new(counter).run); err != nil {
				t.Fatal(err)
			}
		}
		if len(log.lines) > 0 {
			t.Errorf("lines %q, want none", log.lines)
		}
	})
}

func wantAttrs(t *testing.T, got, want map[string]any) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("line has %v, want %v", got, want)
	}
}

func TestGuard_SaysNothingOfSuccessesAboveLevelDebug(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelInfo}
		g := newGuard(t, newStore(t), oncemill.Policy{Logger: slog.New(log)})
		for range 2 {
			if _, err := g.Run(t.Context(), call("m1"), new(counter).run); err != nil {
				t.Fatal(err)
			}
		}
		if len(log.lines) > 0 {
			t.Errorf("lines %q, want none", log.lines)
		}
	})
}

// A store that does not answer refuses nothing.
func TestGuard_SaysOfRefusalsOnlyThatTheyAreOnes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		log := &lines{level: slog.LevelWarn}
		store := newStore(t)
		store.down.Store(true)
		_, err := newGuard(t, store, oncemill.Policy{Logger: slog.New(log)}).Run(t.Context(), call("m1"), new(counter).run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		for _, line := range log.lines {
			if strings.Contains(line, "refuses") {
				t.Errorf("the log says %q", line)
			}
		}
	})
}
