package rpctest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/rpc"
)

// Settings are those of a package, whose Config has the library's own type of codes.
type Settings = rpc.Settings[uint32]

// A Library is a library of calls, with the package that guards them.
type Library struct {
	// Serve starts a server of the service until the test ends, all of whose unary methods have one handler. It must
	// take panics from outside of the guard, as a panicking handler's call. Its address is of a socket. The linger is
	// nil for the default.
	Serve func(t testing.TB, g *oncemill.Guard, s Settings, linger *time.Duration, h Handler) (address string)

	// Dial connects, without or with the client interceptor.
	Dial func(t testing.TB, address string, retries bool) Caller

	// WithKey is that of the package.
	WithKey func(ctx context.Context, key string) context.Context

	// Error is the library's error with a code.
	Error func(code uint32, message string, details ...proto.Message) error

	// Incoming reads metadata of the request, and Add and AddTrailer add some to the response.
	Incoming        func(ctx context.Context, name string) string
	Add, AddTrailer func(ctx context.Context, name, value string)
}

// A Handler answers a call.
type Handler func(ctx context.Context, procedure, value string) (string, error)

// A Caller makes a call, or reads the first answer of a stream. Metadata has names and values in turn.
type Caller func(ctx context.Context, procedure string, request *wrapperspb.StringValue, metadata ...string) Answer

// An Answer is what a client got. Its metadata is in lower case, headers and trailers together.
type Answer struct {
	Value    string
	Code     uint32
	Message  string
	Details  []*anypb.Any
	Metadata map[string][]string
}

func (a Answer) replayed() bool { return slices.Equal(a.Metadata[rpc.Replayed], []string{"true"}) }

// reason is that of the ErrorInfo, or "".
func (a Answer) reason() string {
	for _, d := range a.Details {
		if d.MessageName() == "google.rpc.ErrorInfo" { // field 1 is the reason, field 2 the domain
			s, _, _ := strings.Cut(string(d.Value[2:]), "\x12")
			return s
		}
	}
	return ""
}

func (a Answer) again() bool {
	return slices.ContainsFunc(a.Details, func(d *anypb.Any) bool { return d.MessageName() == "google.rpc.RetryInfo" })
}

// A Rig is a server and a client of it.
type Rig struct {
	t    testing.TB
	lib  Library
	call Caller
	addr string
}

// a suite is the tests of one library.
type suite struct{ Library }

func (s suite) serve(t testing.TB, g *oncemill.Guard, set Settings, h Handler) *Rig {
	t.Helper()
	return s.serveLinger(t, g, set, nil, h)
}

func (s suite) serveLinger(t testing.TB, g *oncemill.Guard, set Settings, linger *time.Duration, h Handler) *Rig {
	t.Helper()
	if set.Account == nil {
		set.Account = func(context.Context) (string, error) { return "default", nil }
	}
	addr := s.Serve(t, g, set, linger, h)
	return &Rig{t, s.Library, s.Dial(t, addr, false), addr}
}

// memory serves over a store in memory with the default policy.
func (s suite) memory(t testing.TB, set Settings, h Handler) *Rig {
	t.Helper()
	return s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}), set, h)
}

func (rg *Rig) send(procedure, value string, metadata ...string) Answer {
	rg.t.Helper()
	return rg.call(context.Background(), procedure, wrapperspb.String(value), metadata...)
}

// pay makes one payment under a key.
func (rg *Rig) pay(key string, metadata ...string) Answer {
	rg.t.Helper()
	return rg.send(Pay, "100", append(metadata, "idempotency-key", key)...)
}

func want(t testing.TB, a Answer, code uint32, replayed bool) {
	t.Helper()
	if a.Code != code || a.replayed() != replayed || a.reason() != "" {
		t.Fatalf("answered %d %q %q, replayed %v; want %d, replayed %v",
			a.Code, a.reason(), a.Message+a.Value, a.replayed(), code, replayed)
	}
}

func wantRefusal(t testing.TB, a Answer, code uint32, reason string) {
	t.Helper()
	if a.Code != code || a.reason() != reason {
		t.Fatalf("answered %d %q %q; want %d %q", a.Code, a.reason(), a.Message+a.Value, code, reason)
	}
}
