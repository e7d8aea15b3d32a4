package idempotencygrpc_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/rpc"
	"github.com/oncemill/oncemill/internal/rpc/rpctest"
	"github.com/oncemill/oncemill/producer/idempotencygrpc"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A message is the request and response of all methods.
type message = wrapperspb.StringValue

func TestSuite_GRPC(t *testing.T) {
	t.Parallel()
	rpctest.Run(t, rpctest.Library{
		Serve: serve, Dial: dial, WithKey: idempotencygrpc.WithKey,
		Error: func(code uint32, text string, details ...proto.Message) error {
			s := status.New(codes.Code(code), text)
			for _, d := range details {
				var err error
				if s, err = s.WithDetails(protoadapt.MessageV1Of(d)); err != nil {
					panic(err)
				}
			}
			return s.Err()
		},
		Incoming: func(ctx context.Context, name string) string {
			return strings.Join(metadata.ValueFromIncomingContext(ctx, name), "|")
		},
		Add: func(ctx context.Context, name, value string) {
			if err := grpc.SendHeader(ctx, metadata.Pairs(name, value)); err != nil {
				panic(err)
			}
		},
		AddTrailer: func(ctx context.Context, name, value string) {
			if err := grpc.SetTrailer(ctx, metadata.Pairs(name, value)); err != nil {
				panic(err)
			}
		},
	})
}

// config is the public form of settings.
func config(s rpctest.Settings) idempotencygrpc.Config {
	return idempotencygrpc.Config(rpc.Coded[codes.Code](s))
}

func serve(t testing.TB, g *oncemill.Guard, s rpctest.Settings, linger *time.Duration, h rpctest.Handler) string {
	t.Helper()
	keys, err := idempotencygrpc.New(g, config(s))
	if err != nil {
		t.Fatal(err)
	}
	if linger != nil {
		keys.SetLinger(*linger)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(recovering, keys.Unary), grpc.ChainStreamInterceptor(keys.Stream))
	server.RegisterService(description(), h)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// recovering takes the panics that go on.
func recovering(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = status.Errorf(codes.Internal, "panic: %v", v)
		}
	}()
	return next(ctx, request)
}

// description is what protoc-gen-go-grpc would make.
func description() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: rpctest.Service, HandlerType: (*any)(nil)}
	for _, procedure := range []string{rpctest.Pay, rpctest.Refund, rpctest.Put, rpctest.Look, rpctest.Order} {
		d.Methods = append(d.Methods, grpc.MethodDesc{
			MethodName: strings.TrimPrefix(procedure, "/"+rpctest.Service+"/"),
			Handler: func(server any, ctx context.Context, read func(any) error, intercept grpc.UnaryServerInterceptor) (
				any, error,
			) {
				request := new(message)
				if err := read(request); err != nil {
					return nil, err
				}
				return intercept(ctx, request, &grpc.UnaryServerInfo{Server: server, FullMethod: procedure},
					func(ctx context.Context, request any) (any, error) {
						value, err := server.(rpctest.Handler)(ctx, procedure, request.(*message).GetValue())
						return wrapperspb.String(value), err
					})
			},
		})
	}
	d.Streams = []grpc.StreamDesc{{
		StreamName: "Watch", ServerStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error {
			request := new(message)
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			value, err := server.(rpctest.Handler)(stream.Context(), rpctest.Watch, request.GetValue())
			if err != nil {
				return err
			}
			return stream.SendMsg(wrapperspb.String(value))
		},
	}}
	return d
}

func dial(t testing.TB, address string, retries bool) rpctest.Caller {
	t.Helper()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if retries {
		again, err := idempotencygrpc.NewClientInterceptor(idempotencygrpc.ClientConfig{MaxAttempts: 100})
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, grpc.WithChainUnaryInterceptor(again))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(ctx context.Context, procedure string, m *message, md ...string) rpctest.Answer {
		if len(md) > 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, md...)
		}
		var header, trailer metadata.MD
		response := new(message)
		if procedure == rpctest.Watch {
			err = watch(ctx, conn, m, response)
		} else {
			err := conn.Invoke(ctx, procedure, m, response, grpc.Header(&header), grpc.Trailer(&trailer))
			return answer(response, err, metadata.Join(header, trailer))
		}
		return answer(response, err, nil)
	}
}

func watch(ctx context.Context, conn *grpc.ClientConn, request, response *message) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rpctest.Watch)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return stream.RecvMsg(response)
}

func answer(response *message, err error, md metadata.MD) rpctest.Answer {
	s := status.Convert(err)
	return rpctest.Answer{
		Value: response.GetValue(), Code: uint32(s.Code()), Message: s.Message(), Details: s.Proto().GetDetails(),
		Metadata: md,
	}
}
