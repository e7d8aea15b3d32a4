package idempotencyconnect_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/rpc"
	"github.com/oncemill/oncemill/internal/rpc/rpctest"
	"github.com/oncemill/oncemill/producer/idempotencyconnect"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A message is the request and response of all methods.
type message = wrapperspb.StringValue

func TestSuite_Connect(t *testing.T) { t.Parallel(); rpctest.Run(t, library()) }

func TestSuite_ConnectSpeaksGRPC(t *testing.T) {
	t.Parallel()
	rpctest.Run(t, library(connect.WithGRPC()))
}

func TestSuite_ConnectWithJSON(t *testing.T) {
	t.Parallel()
	rpctest.Run(t, library(connect.WithProtoJSON()))
}

func library(options ...connect.ClientOption) rpctest.Library {
	return rpctest.Library{
		Serve: serve,
		Dial: func(t testing.TB, address string, retries bool) rpctest.Caller {
			return dial(t, address, retries, options...)
		},
		WithKey: idempotencyconnect.WithKey,
		Error: func(code uint32, text string, details ...proto.Message) error {
			err := connect.NewError(connect.Code(code), errors.New(text))
			for _, d := range details {
				detail, bad := connect.NewErrorDetail(d)
				if bad != nil {
					panic(bad)
				}
				err.AddDetail(detail)
			}
			return err
		},
		Incoming: func(ctx context.Context, name string) string {
			return strings.Join(infoOf(ctx).RequestHeader().Values(name), "|")
		},
		Add:        func(ctx context.Context, name, value string) { infoOf(ctx).ResponseHeader().Add(name, value) },
		AddTrailer: func(ctx context.Context, name, value string) { infoOf(ctx).ResponseTrailer().Add(name, value) },
	}
}

func infoOf(ctx context.Context) connect.CallInfo {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		panic("no call")
	}
	return info
}

// config is the public form of settings.
func config(s rpctest.Settings) idempotencyconnect.Config {
	return idempotencyconnect.Config(rpc.Coded[connect.Code](s))
}

func serve(t testing.TB, g *oncemill.Guard, s rpctest.Settings, linger *time.Duration, h rpctest.Handler) string {
	t.Helper()
	keys, err := idempotencyconnect.New(g, config(s))
	if err != nil {
		t.Fatal(err)
	}
	if linger != nil {
		keys.SetLinger(*linger)
	}
	mux := http.NewServeMux()
	for _, procedure := range []string{rpctest.Pay, rpctest.Refund, rpctest.Put, rpctest.Look, rpctest.Order} {
		mux.Handle(procedure, connect.NewUnaryHandlerSimple(procedure,
			func(ctx context.Context, request *message) (*message, error) {
				value, err := h(ctx, procedure, request.GetValue())
				return wrapperspb.String(value), err
			}, connect.WithInterceptors(keys)))
	}
	mux.Handle(rpctest.Watch, connect.NewServerStreamHandlerSimple(rpctest.Watch,
		func(ctx context.Context, request *message, stream *connect.ServerStream[message]) error {
			value, err := h(ctx, rpctest.Watch, request.GetValue())
			if err != nil {
				return err
			}
			return stream.Send(wrapperspb.String(value))
		}, connect.WithInterceptors(keys)))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func dial(t testing.TB, address string, retries bool, options ...connect.ClientOption) rpctest.Caller {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	if retries {
		again, err := idempotencyconnect.NewClientInterceptor(idempotencyconnect.ClientConfig{MaxAttempts: 100})
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, connect.WithInterceptors(again))
	}
	client := func(procedure string) *connect.Client[message, message] {
		return connect.NewClient[message, message](&http.Client{Transport: transport}, address+procedure, options...)
	}
	return func(ctx context.Context, procedure string, m *message, metadata ...string) rpctest.Answer {
		request := connect.NewRequest(m)
		for i := 0; i < len(metadata); i += 2 {
			request.Header().Add(metadata[i], metadata[i+1])
		}
		if procedure == rpctest.Watch {
			stream, err := client(procedure).CallServerStream(ctx, request)
			if err != nil {
				return failed(err)
			}
			defer stream.Close()
			if !stream.Receive() {
				return failed(stream.Err())
			}
			return rpctest.Answer{Value: stream.Msg().GetValue()}
		}
		response, err := client(procedure).CallUnary(ctx, request)
		if err != nil {
			return failed(err)
		}
		a := rpctest.Answer{Value: response.Msg.GetValue(), Metadata: map[string][]string{}}
		lower(a.Metadata, response.Header())
		lower(a.Metadata, response.Trailer())
		return a
	}
}

func failed(err error) rpctest.Answer {
	a := rpctest.Answer{Code: uint32(connect.CodeOf(err)), Message: err.Error(), Metadata: map[string][]string{}}
	if known, ok := errors.AsType[*connect.Error](err); ok {
		a.Message = known.Message()
		for _, d := range known.Details() {
			a.Details = append(a.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
		}
		lower(a.Metadata, known.Meta())
	}
	return a
}

func lower(to map[string][]string, from http.Header) {
	for name, values := range from {
		to[strings.ToLower(name)] = values
	}
}
