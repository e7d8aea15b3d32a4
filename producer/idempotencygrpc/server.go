package idempotencygrpc

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/rpc"
)

// An Interceptor runs the handlers of unary calls once for each key, and repeats the response. It is safe for
// concurrent use.
type Interceptor struct{ server *rpc.Server }

// New returns an interceptor over a guard. The error names the field of the config that is wrong. Responses are kept
// for Policy.Window, or Policy.FailureWindow if the handler failed: say that in your API's documentation.
func New(guard *oncemill.Guard, c Config) (*Interceptor, error) {
	server, err := rpc.NewServer(guard, rpc.Settings[codes.Code](c))
	if err != nil {
		return nil, fmt.Errorf("idempotencygrpc: %w", err)
	}
	return &Interceptor{server}, nil
}

var (
	_ grpc.UnaryServerInterceptor  = (*Interceptor)(nil).Unary
	_ grpc.StreamServerInterceptor = (*Interceptor)(nil).Stream
)

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (
	any, error,
) {
	if i.server.Passes(info.FullMethod) {
		return next(ctx, request)
	}
	var response any
	var err error
	kept := &heldMetadata{ServerTransportStream: grpc.ServerTransportStreamFromContext(ctx)}
	reply := i.server.Call(ctx, info.FullMethod, metadata.ValueFromIncomingContext(ctx, keyHeader), request,
		func(ctx context.Context) (*rpc.Reply, bool, error) {
			kept.header, kept.trailer = metadata.MD{}, metadata.MD{}
			response, err = next(grpc.NewContextWithServerTransportStream(ctx, kept), request)
			reply, coded := replyOf(response, err)
			reply.Header, reply.Trailer = kept.header, kept.trailer
			return reply, coded, err
		})
	if reply == nil {
		return response, join(err, send(ctx, kept.header, kept.trailer))
	}
	bad := send(ctx, reply.Header, reply.Trailer)
	if reply.Status != nil {
		return nil, join(errorOf(reply), bad)
	}
	return reply.Message, bad
}

// join returns the error of a call. That of sending metadata counts if there is no other: a client that has gone.
func join(err, bad error) error {
	if err != nil {
		return err
	}
	return bad
}

// Stream is a grpc.StreamServerInterceptor. It refuses streams, except those that pass.
func (i *Interceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler,
) error {
	if i.server.Passes(info.FullMethod) {
		return next(server, stream)
	}
	return errorOf(i.server.RefuseStream())
}

// heldMetadata holds back the metadata that a handler sends, until its run counts.
type heldMetadata struct {
	grpc.ServerTransportStream
	mu              sync.Mutex // the handler may have goroutines
	header, trailer metadata.MD
}

// SetHeader implements grpc.ServerTransportStream.
func (h *heldMetadata) SetHeader(md metadata.MD) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.header = metadata.Join(h.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (h *heldMetadata) SendHeader(md metadata.MD) error { return h.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (h *heldMetadata) SetTrailer(md metadata.MD) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trailer = metadata.Join(h.trailer, md)
	return nil
}

func send(ctx context.Context, header, trailer map[string][]string) error {
	if len(trailer) > 0 {
		if err := grpc.SetTrailer(ctx, trailer); err != nil {
			return err
		}
	}
	if len(header) > 0 {
		return grpc.SetHeader(ctx, header)
	}
	return nil
}

// replyOf says what grpc makes of a handler's result. An error with a status is an answer.
func replyOf(response any, err error) (reply *rpc.Reply, coded bool) {
	if err == nil {
		message, _ := response.(proto.Message)
		return &rpc.Reply{Message: message}, true
	}
	known, coded := grpcstatus.FromError(err)
	if !coded {
		known = grpcstatus.FromContextError(err)
	}
	return &rpc.Reply{Status: statusOf(known)}, coded
}

func statusOf(s *grpcstatus.Status) *rpc.Status {
	p := s.Proto()
	return &rpc.Status{Code: uint32(p.GetCode()), Message: p.GetMessage(), Details: p.GetDetails()}
}

// errorOf makes an error of a reply with a status.
func errorOf(r *rpc.Reply) error {
	return grpcstatus.FromProto(&status.Status{
		Code: int32(r.Status.Code), Message: r.Status.Message, Details: r.Status.Details,
	}).Err()
}
