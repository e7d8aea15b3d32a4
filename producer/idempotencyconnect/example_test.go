package idempotencyconnect_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencyconnect"
)

func Example() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // later in Redis or a database
	if err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		panic(err)
	}
	keys, err := idempotencyconnect.New(guard, idempotencyconnect.Config{Account: idempotencyconnect.SingleTenant})
	if err != nil {
		panic(err)
	}
	payments := 0
	pay := func(_ context.Context, amount *message) (*message, error) {
		payments++
		return wrapperspb.String("paid " + amount.GetValue()), nil
	}
	server := httptest.NewServer(connect.NewUnaryHandlerSimple("/shop.v1.Payments/Pay", pay,
		connect.WithInterceptors(keys))) // generated code does the same
	defer server.Close()

	again, err := idempotencyconnect.NewClientInterceptor(idempotencyconnect.ClientConfig{})
	if err != nil {
		panic(err)
	}
	client := connect.NewClient[message, message](server.Client(), server.URL+"/shop.v1.Payments/Pay",
		connect.WithInterceptors(again))
	ctx := idempotencyconnect.WithKey(context.Background(), "order-17")
	for _, amount := range []string{"100", "100", "200"} {
		response, err := client.CallUnary(ctx, connect.NewRequest(wrapperspb.String(amount)))
		if err != nil {
			fmt.Println(connect.CodeOf(err))
			continue
		}
		fmt.Printf("%s %q\n", response.Msg.GetValue(), response.Header().Get("Idempotent-Replayed"))
	}
	fmt.Println("payments:", payments)
	// Output:
	// paid 100 ""
	// paid 100 "true"
	// failed_precondition
	// payments: 1
}
