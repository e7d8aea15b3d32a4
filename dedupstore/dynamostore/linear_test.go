package dynamostore

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

// linearTimeout is after what time an answer counts as lost.
const linearTimeout = 100 * time.Millisecond

// faults drops some replies, delays some, and holds some requests so long that their clients have gone.
func faults(seed uint64) func(string) dynamotest.Fault {
	rnd := lineartest.Rand(seed)
	return func(string) (f dynamotest.Fault) {
		switch n := rnd.IntN(100); {
		case n < 7:
			f.DropReply = true
		case n < 9:
			f.DelayRequest = linearTimeout + rand.N(50*time.Millisecond)
		case n < 19:
			f.DelayReply = rand.N(3 * time.Millisecond)
		}
		return f
	}
}

// TestLinearizable_WithLostAndDelayedReplies runs 200 histories of each kind. Beside other tests dynalite would answer
// too late for most operations, and orders of such cannot all be tried.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	lineartest.OnlyProved(t)
	for name, c := range map[string]struct{ shared, oldItems bool }{
		"a store each":                 {},
		"one store":                    {shared: true},
		"old items come with refusals": {oldItems: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
			if c.oldItems {
				proxy.AddOldItems(keyAttribute)
			}
			lineartest.Linearizable(t, 200, proxy, histories(t, proxy, c.shared))
			t.Logf("%d requests, %d late, %d old items", proxy.Exchanges(), proxy.Late(), proxy.Added())
		})
	}
}

// histories makes them of stores on one table, whose clients send nothing again: each operation has one effect at most.
func histories(
	t *testing.T, proxy *dynamotest.Proxy, shared bool, o ...func(*dynamodb.Options),
) func(seed uint64) lineartest.History {
	var crowd lineartest.Crowd
	table := newTable(t)
	for w := range lineartest.Workers {
		if w > 0 && shared {
			crowd.Stores = append(crowd.Stores, crowd.Stores[0])
			continue
		}
		s := storeOf(t, clientOf(t, proxy.URL, append(o, once)...), table)
		s.slack = 0
		crowd.Stores = append(crowd.Stores, lineartest.Impatient{Store: s, Timeout: linearTimeout})
	}
	return func(seed uint64) lineartest.History {
		proxy.Inject(faults(seed))
		return crowd.History(t, seed)
	}
}

// A checker that cannot fail proves nothing: stores whose client breaks one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	for name, breaks := range map[string]func(any){
		"writes on no condition": func(in any) {
			if put, ok := in.(*dynamodb.PutItemInput); ok {
				put.ConditionExpression, put.ExpressionAttributeNames, put.ExpressionAttributeValues = nil, nil, nil
			}
		},
		"settlements on no condition": func(in any) {
			if put, ok := in.(*dynamodb.PutItemInput); ok && put.ExpressionAttributeValues != nil {
				put.ConditionExpression, put.ExpressionAttributeNames, put.ExpressionAttributeValues = nil, nil, nil
			}
		},
		"one number for all": func(in any) {
			if put, ok := in.(*dynamodb.PutItemInput); ok {
				put.Item[numberAttribute] = number(1)
				if put.ExpressionAttributeValues != nil {
					put.ExpressionAttributeValues[":last"] = &types.AttributeValueMemberN{Value: "1"}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "writes on no condition" { // which takes fewer histories
				lineartest.OnlyProved(t)
			}
			proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
			lineartest.FoundOut(t, 200, histories(t, proxy, false, changing(breaks)))
		})
	}
}

// changing lets a function change requests.
func changing(change func(any)) func(*dynamodb.Options) {
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("changing", func(
				ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
			) (middleware.InitializeOutput, middleware.Metadata, error) {
				change(in.Parameters)
				return next.HandleInitialize(ctx, in)
			}), middleware.Before)
		})
	}
}
