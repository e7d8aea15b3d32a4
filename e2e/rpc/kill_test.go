package rpc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencyconnect"
	"github.com/oncemill/oncemill/producer/idempotencygrpc"
)

// A caller makes a payment with the package's client interceptor.
type caller func(ctx context.Context, key string) (paid string, replayed bool, err error)

var callers = map[string]func(t testing.TB, s *shop) caller{"connect": callConnect, "grpc": callGRPC}

func callConnect(t testing.TB, s *shop) caller {
	again, err := idempotencyconnect.NewClientInterceptor(idempotencyconnect.ClientConfig{MaxAttempts: 1000})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](&http.Client{Transport: transport},
		"http://"+s.connect+procedure, connect.WithInterceptors(again))
	return func(ctx context.Context, key string) (string, bool, error) {
		ctx = idempotencyconnect.WithKey(ctx, key)
		response, err := client.CallUnary(ctx, connect.NewRequest(wrapperspb.String("100")))
		if err != nil {
			return "", false, err
		}
		return response.Msg.GetValue(), response.Header().Get("Idempotent-Replayed") == "true", nil
	}
}

func callGRPC(t testing.TB, s *shop) caller {
	again, err := idempotencygrpc.NewClientInterceptor(idempotencygrpc.ClientConfig{MaxAttempts: 1000})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(again))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func(ctx context.Context, key string) (string, bool, error) {
		var header metadata.MD
		response := new(wrapperspb.StringValue)
		err := conn.Invoke(idempotencygrpc.WithKey(ctx, key), procedure, wrapperspb.String("100"), response, grpc.Header(&header))
		return response.GetValue(), len(header.Get("idempotent-replayed")) > 0, err
	}
}

func TestKill_ClientThatRetriesMakesOneEffect(t *testing.T) {
	t.Parallel()
	for library, dial := range callers {
		for _, where := range []string{beforeEffect, afterEffect, beforeReply} {
			t.Run(library+" "+where, func(t *testing.T) {
				t.Parallel()
				s := newShop(t)
				call := dial(t, s)
				p := s.start(t, where)
				type answer struct {
					paid     string
					replayed bool
					err      error
				}
				answers := make(chan answer, 1)
				go func() {
					paid, replayed, err := call(context.Background(), "k")
					answers <- answer{paid, replayed, err}
				}()
				p.says(t, "stopped")
				p.kill()
				s.start(t, "")
				a := <-answers
				if a.err != nil || a.paid != "paid k" || a.replayed != (where == beforeReply) {
					t.Errorf("answered %q, replayed %v, %v", a.paid, a.replayed, a.err)
				}
				if n := s.payments(t)["k"]; n != 1 {
					t.Errorf("%d payments, want 1", n)
				}
			})
		}
	}
}

func TestKill_AnywhereUnderLoadEachCallHasOneEffect(t *testing.T) {
	t.Parallel()
	kills, clients := 3, 8
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		kills = 50
	}
	for library, dial := range callers {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			call := dial(t, s)
			var paid atomic.Int64
			stop := make(chan struct{})
			var wg sync.WaitGroup
			p := s.start(t, "")
			for c := range clients {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						key := fmt.Sprintf("%d-%d", c, i)
						if got, _, err := call(context.Background(), key); err != nil || got != "paid "+key {
							t.Errorf("%s: answered %q, %v", key, got, err)
							return
						}
						paid.Add(1)
					}
				})
			}
			for range kills {
				enough := paid.Load() + 5 + rand.Int64N(40)
				keytest.Until(t, "the shop has answered", func() bool { return paid.Load() >= enough || t.Failed() })
				p.kill()
				p = s.start(t, "")
			}
			close(stop)
			wg.Wait()
			made := s.payments(t)
			for id, n := range made {
				if n != 1 {
					t.Errorf("%s: %d payments", id, n)
				}
			}
			if int64(len(made)) != paid.Load() {
				t.Errorf("%d payments for %d calls", len(made), paid.Load())
			}
			t.Logf("%d calls, %d kills, %d payments", paid.Load(), kills, len(made))
		})
	}
}
