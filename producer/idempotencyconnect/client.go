package idempotencyconnect

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"github.com/oncemill/oncemill/internal/rpc"
)

// NewClientInterceptor returns an interceptor that gives each unary call a key, and sends it again with that key until
// an answer counts. The error names the field that is wrong. It is safe for concurrent use.
//
// Use it only for servers that honour the key: at others a repeat is another call, and its effect happens twice. The
// key is the one in the request's header, or that of WithKey, or a new one, which lives for one call. Methods with
// NO_SIDE_EFFECTS, and streams, are sent as they are.
//
// A call is sent again after a lost connection, after a code of the server's failure or ResourceExhausted, and after
// any Aborted with a RetryInfo, but not after a stored response. Pauses double from 100 ms to 5 s, less up to a half at
// random; a longer RetryInfo counts instead. If the context's deadline comes first, the last error is returned.
func NewClientInterceptor(c ClientConfig) (connect.Interceptor, error) {
	client, err := rpc.NewClient(rpc.Client(c))
	if err != nil {
		return nil, fmt.Errorf("idempotencyconnect: %w", err)
	}
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
			spec := request.Spec()
			if !spec.IsClient || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects ||
				rpc.NoSideEffects(spec.Procedure) {
				return next(ctx, request)
			}
			if request.Header().Get(keyHeader) == "" {
				key, err := rpc.Key(ctx)
				if err != nil {
					return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("idempotencyconnect: %w", err))
				}
				request.Header().Set(keyHeader, key)
				defer request.Header().Del(keyHeader) // the caller may send the request as another call
			}
			client.Send(ctx, func() rpc.Try {
				response, err = next(ctx, request)
				return tryOf(err)
			})
			return response, err
		}
	}), nil
}

// tryOf says how a call went.
func tryOf(err error) rpc.Try {
	if err == nil {
		return rpc.Try{}
	}
	try := rpc.Try{Status: statusOf(err), Lost: !connect.IsWireError(err)}
	if reply, _ := replyOf(nil, err); reply.Header != nil {
		try.Replayed = len(reply.Header["Idempotent-Replayed"]) > 0
	}
	return try
}
