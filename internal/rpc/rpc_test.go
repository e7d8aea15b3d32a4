package rpc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/apipb"
	"google.golang.org/protobuf/types/known/sourcecontextpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

func TestReply_IsReadAsItWasStored(t *testing.T) {
	t.Parallel()
	why, err := anypb.New(wrapperspb.String("why"))
	if err != nil {
		t.Fatal(err)
	}
	metadata := map[string][]string{"Etag": {"1", "2"}, "x-bin": {"\xff\x00"}, "cookie": {"hidden"}}
	for name, r := range map[string]*Reply{
		"message": {Message: wrapperspb.String("\n{}\n"), Header: metadata, Trailer: metadata},
		"empty":   {Message: wrapperspb.String("")},
		"status":  {Status: &Status{Code: 5, Message: "no", Details: []*anypb.Any{why}}, Header: metadata},
	} {
		data, whole := r.encode(1<<10, []string{"etag", "X-Bin"})
		got, err := decode(data)
		if err != nil || !whole {
			t.Fatalf("%s: %v, whole %v", name, err, whole)
		}
		if r.Header != nil {
			delete(got.Header, "cookie") // it must not be there
			if len(got.Header) != 2 || !slices.Equal(got.Header["etag"], metadata["Etag"]) ||
				!slices.Equal(got.Header["x-bin"], metadata["x-bin"]) || strings.Contains(string(data), "hidden") {
				t.Errorf("%s: header %v", name, got.Header)
			}
		}
		if !proto.Equal(got.Message, r.Message) {
			t.Errorf("%s: message %v", name, got.Message)
		}
		if (got.Status == nil) != (r.Status == nil) || r.Status != nil && (got.Status.Code != 5 ||
			got.Status.Message != "no" || !proto.Equal(got.Status.Details[0], why)) {
			t.Errorf("%s: status %v", name, got.Status)
		}
	}
}

func TestReply_ThatDoesNotFitIsANote(t *testing.T) {
	t.Parallel()
	r := &Reply{Message: wrapperspb.String(strings.Repeat("x", 100))}
	data, _ := r.encode(1<<10, nil)
	for most, fits := range map[int]bool{len(data): true, len(data) - 1: false} {
		data, whole := r.encode(most, nil)
		got, err := decode(data)
		if err != nil || whole != fits || (got != nil) != fits {
			t.Errorf("%d bytes: whole %v, read as %v, %v", most, whole, got, err)
		}
	}
	refusal, whole := (&Reply{Status: &Status{Code: 5, Message: strings.Repeat("x", 100)}}).encode(60, nil)
	if got, err := decode(refusal); err != nil || whole || got == nil || got.Status.Code != 5 {
		t.Errorf("of a status that does not fit there is %v, %v: want its code", got, err)
	}
	if _, whole := (&Reply{}).encode(1<<10, nil); whole {
		t.Error("a response that is no message of protobuf is stored")
	}
}

func TestReply_SaysWhenToComeAgain(t *testing.T) {
	t.Parallel()
	first := refusal("in-progress", "")
	for wait, want := range map[time.Duration]time.Duration{0: time.Second, time.Minute + 1: time.Minute + 1} {
		if got, said := first.after(wait).Status.retryAfter(); !said || got != want {
			t.Errorf("after %v it says %v, %v", wait, got, said)
		}
	}
	if _, said := first.Status.retryAfter(); said || len(first.Status.Details) != 1 {
		t.Error("the reply itself was changed")
	}
	for _, bad := range []string{"", "\x0a", "\x0a\xff", "\xff", "\x08\x01"} {
		s := &Status{Details: []*anypb.Any{detail(retryInfo, []byte(bad))}}
		if got, _ := s.retryAfter(); got != 0 {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestFields_PathsLeadToStrings(t *testing.T) {
	t.Parallel()
	api := &apipb.Api{Name: "a", SourceContext: &sourcecontextpb.SourceContext{FileName: "b"}}
	for path, want := range map[string]string{"name": "a", "source_context.file_name": "b"} {
		if !hasField(api.ProtoReflect().Descriptor(), path) || fieldValue(api.ProtoReflect(), path) != want {
			t.Errorf("%s is %q, want %q", path, fieldValue(api.ProtoReflect(), path), want)
		}
	}
	if got := fieldValue((&apipb.Api{}).ProtoReflect(), "source_context.file_name"); got != "" {
		t.Errorf("a field that is not set is %q", got)
	}
	for _, path := range []string{
		"no", "syntax", "methods", "methods.name", "name.x", "source_context", "source_context.no",
	} {
		if hasField(api.ProtoReflect().Descriptor(), path) {
			t.Errorf("%s was taken", path)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data, _ := (&Reply{Message: wrapperspb.String("x")}).encode(1<<10, nil)
	f.Add(data)
	f.Add([]byte("{\"rpc\":1,\"code\":5}\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if r, err := decode(data); err == nil && r != nil {
			r.encode(1<<20, nil)
		}
	})
}

// twice is an inbox whose database refuses each first transaction because of others.
type twice struct{ dedupstore.Store }

func (s twice) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err != nil {
		return nil, err
	}
	_, _ = work(ctx, claims)
	settlements, err := work(ctx, claims)
	if err != nil {
		return nil, err
	}
	return nil, dedupstore.SettleOne(ctx, s, claims[0], settlements[0])
}

func (twice) TakesFirst() bool { return false }

var _ dedupstore.Transactor = twice{}

// sliceError cannot be compared.
type sliceError []string

func (e sliceError) Error() string { return strings.Join(e, ", ") }

func TestCall_ThatRunsAgainHasItsRequestAgain(t *testing.T) {
	t.Parallel()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := oncemill.NewGuard(twice{memory}, oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	one := func(context.Context) (string, error) { return "a", nil }
	s, err := NewServer(guard, Settings[uint32]{Account: one})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	call := func(key string, fails error) *Reply {
		request := wrapperspb.Int64(7)
		return s.Call(t.Context(), "/shop.Pay/Charge", []string{key}, request,
			func(context.Context) (*Reply, bool, error) {
				got = append(got, request.Value)
				request.Value *= 100
				return &Reply{Message: request}, false, fails
			})
	}
	call(`"1"`, nil)
	if !slices.Equal(got, []int64{7, 7}) {
		t.Errorf("the runs got %v, want 7 twice", got)
	}
	call(`"2"`, sliceError{"no"}) // must not panic
}
