package idempotencygrpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/oncemill/oncemill/internal/rpc"
)

// NewClientInterceptor returns an interceptor that gives each unary call a key, and sends it again with that key until
// an answer counts. The error names the field that is wrong. It is safe for concurrent use.
//
// Use it only for servers that honour the key: at others a repeat is another call, and its effect happens twice. The
// key is the one in the context's outgoing metadata, or that of WithKey, or a new one, which lives for one call.
// Methods with NO_SIDE_EFFECTS are sent as they are.
//
// A call is sent again after a lost connection, after a code of the server's failure or ResourceExhausted, and after
// any Aborted with a RetryInfo, but not after a stored response. Pauses double from 100 ms to 5 s, less up to a half at
// random; a longer RetryInfo counts instead. If the context's deadline comes first, the last error is returned.
func NewClientInterceptor(c ClientConfig) (grpc.UnaryClientInterceptor, error) {
	client, err := rpc.NewClient(rpc.Client(c))
	if err != nil {
		return nil, fmt.Errorf("idempotencygrpc: %w", err)
	}
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) (err error) {
		if rpc.NoSideEffects(method) {
			return invoke(ctx, method, request, reply, conn, options...)
		}
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(keyHeader)) == 0 {
			key, err := rpc.Key(ctx)
			if err != nil {
				return grpcstatus.Errorf(codes.InvalidArgument, "idempotencygrpc: %v", err)
			}
			ctx = metadata.AppendToOutgoingContext(ctx, keyHeader, key)
		}
		var header, trailer metadata.MD // connect-go sends an error's metadata as trailers
		options = append(options[:len(options):len(options)], grpc.Header(&header), grpc.Trailer(&trailer))
		client.Send(ctx, func() rpc.Try {
			header, trailer = nil, nil
			if err = invoke(ctx, method, request, reply, conn, options...); err == nil {
				return rpc.Try{}
			}
			replayed := len(header.Get(rpc.Replayed))+len(trailer.Get(rpc.Replayed)) > 0
			return rpc.Try{Status: statusOf(grpcstatus.Convert(err)), Replayed: replayed}
		})
		return err
	}, nil
}
