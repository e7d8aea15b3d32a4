package idempotencyconnect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/rpc"
)

// An Interceptor runs the handlers of unary calls once for each key, and repeats the response. It is for handlers, and
// safe for concurrent use.
type Interceptor struct{ server *rpc.Server }

var _ connect.Interceptor = (*Interceptor)(nil)

// New returns an interceptor over a guard. The error names the field of the config that is wrong. Responses are kept
// for Policy.Window, or Policy.FailureWindow if the handler failed: say that in your API's documentation.
func New(guard *oncemill.Guard, c Config) (*Interceptor, error) {
	server, err := rpc.NewServer(guard, rpc.Settings[connect.Code](c))
	if err != nil {
		return nil, fmt.Errorf("idempotencyconnect: %w", err)
	}
	return &Interceptor{server}, nil
}

// WrapUnary implements connect.Interceptor.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		spec := request.Spec()
		if spec.IsClient || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects ||
			i.server.Passes(spec.Procedure) {
			return next(ctx, request)
		}
		meta := metadataOf(ctx)
		var response connect.AnyResponse
		var err error
		reply := i.server.Call(ctx, spec.Procedure, request.Header().Values(keyHeader), request.Any(),
			func(ctx context.Context) (*rpc.Reply, bool, error) {
				meta.reset()
				response, err = next(ctx, request)
				reply, coded := replyOf(response, err)
				meta.add(reply)
				return reply, coded, err
			})
		if reply == nil {
			return response, err
		}
		meta.reset()
		return answer(reply)
	}
}

// WrapStreamingClient implements connect.Interceptor. It changes nothing.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. It refuses streams, except those that pass.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		spec := conn.Spec()
		if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || i.server.Passes(spec.Procedure) {
			return next(ctx, conn)
		}
		return errorOf(i.server.RefuseStream())
	}
}

// metadata is what the handler may set of a response by its context, with what was set outside of it.
type metadata struct{ header, trailer, outerHeader, outerTrailer http.Header }

func metadataOf(ctx context.Context) metadata {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return metadata{}
	}
	header, trailer := info.ResponseHeader(), info.ResponseTrailer()
	return metadata{header, trailer, header.Clone(), trailer.Clone()}
}

// reset forgets what a run has set.
func (m metadata) reset() {
	clear(m.header)
	maps.Copy(m.header, m.outerHeader)
	clear(m.trailer)
	maps.Copy(m.trailer, m.outerTrailer)
}

// add adds what a run has set to its reply.
func (m metadata) add(r *rpc.Reply) {
	r.Header, r.Trailer = joined(r.Header, m.header), joined(r.Trailer, m.trailer)
}

func joined(a, b http.Header) http.Header {
	all := http.Header{}
	maps.Copy(all, a)
	for name, values := range b {
		all[name] = slices.Concat(all[name], values)
	}
	return all
}

// replyOf says what connect makes of a handler's result. An error with a code is an answer.
func replyOf(response connect.AnyResponse, err error) (reply *rpc.Reply, coded bool) {
	if err == nil {
		message, _ := response.Any().(proto.Message)
		return &rpc.Reply{Message: message, Header: response.Header(), Trailer: response.Trailer()}, true
	}
	reply = &rpc.Reply{Status: statusOf(err)}
	known, coded := errors.AsType[*connect.Error](err)
	if coded {
		own := *known // Meta makes a map where there is none, and calls may share an error
		reply.Header = own.Meta().Clone()
	}
	return reply, coded
}

// statusOf makes of an error what connect sends.
func statusOf(err error) *rpc.Status {
	known, coded := errors.AsType[*connect.Error](err)
	if !coded {
		code := connect.CodeUnknown
		switch {
		case errors.Is(err, context.Canceled):
			code = connect.CodeCanceled
		case errors.Is(err, context.DeadlineExceeded):
			code = connect.CodeDeadlineExceeded
		}
		return &rpc.Status{Code: uint32(code), Message: err.Error()}
	}
	status := &rpc.Status{Code: uint32(known.Code()), Message: known.Message()}
	for _, d := range known.Details() {
		status.Details = append(status.Details,
			&anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
	}
	return status
}

// errorOf makes an error of a reply with a status.
func errorOf(r *rpc.Reply) *connect.Error {
	err := connect.NewError(connect.Code(r.Status.Code), errors.New(r.Status.Message))
	for _, d := range r.Status.Details {
		if detail, bad := connect.NewErrorDetail(d); bad == nil {
			err.AddDetail(detail)
		}
	}
	set(err.Meta(), r.Header)
	set(err.Meta(), r.Trailer)
	return err
}

func set(to http.Header, from map[string][]string) {
	for name, values := range from {
		to[http.CanonicalHeaderKey(name)] = values
	}
}

// stored is a message whose type is known by its descriptor only. connect needs a type for its response.
type stored struct{ proto.Message }

// answer makes a response of a reply.
func answer(r *rpc.Reply) (connect.AnyResponse, error) {
	if r.Status != nil {
		return nil, errorOf(r)
	}
	response := connect.NewResponse(&stored{r.Message})
	set(response.Header(), r.Header)
	set(response.Trailer(), r.Trailer)
	return response, nil
}
