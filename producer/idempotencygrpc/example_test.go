package idempotencygrpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencygrpc"
)

// The health service stands in for one that has effects.
func Example() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // later in Redis or a database
	if err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		panic(err)
	}
	keys, err := idempotencygrpc.New(guard, idempotencygrpc.Config{
		Account: idempotencygrpc.SingleTenant,
		Pass:    func(string) bool { return false }, // usually health passes
	})
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(keys.Unary), grpc.ChainStreamInterceptor(keys.Stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	again, err := idempotencygrpc.NewClientInterceptor(idempotencygrpc.ClientConfig{})
	if err != nil {
		panic(err)
	}
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithUnaryInterceptor(again),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	ctx := idempotencygrpc.WithKey(context.Background(), "order-17")
	for _, service := range []string{"", "", "other"} {
		response, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if status.Code(err) != codes.OK {
			fmt.Println(status.Code(err))
			continue
		}
		fmt.Println(response.GetStatus())
	}
	// Output:
	// SERVING
	// SERVING
	// FailedPrecondition
}
