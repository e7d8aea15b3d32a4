package dynamostore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

const (
	linearWorkers = 5
	linearOps     = 40
	linearTimeout = 100 * time.Millisecond // after which an answer counts as lost
)

// impatient gives up on a server that does not answer soon.
type impatient struct{ dedupstore.Store }

func (s impatient) Claim(ctx context.Context, r []dedupstore.Request) []dedupstore.ClaimResult {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Claim(ctx, r)
}

func (s impatient) Extend(ctx context.Context, x []dedupstore.Extension) []error {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Extend(ctx, x)
}

func (s impatient) Settle(ctx context.Context, x []dedupstore.Settling) []error {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	return s.Store.Settle(ctx, x)
}

// faults drops some replies, delays some, and holds some requests so long that their clients have gone.
func faults(seed uint64) func(string) dynamotest.Fault {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	return func(string) (f dynamotest.Fault) {
		mu.Lock()
		defer mu.Unlock()
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

// TestLinearizable_WithLostAndDelayedReplies runs 2 histories of each kind, and 200 with ONCEMILL_PROOF=1. Beside the
// other tests dynalite would answer too late for most operations, and orders of such cannot all be tried.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
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
			stores, table := make([]dedupstore.Store, linearWorkers), newTable(t)
			for w := range stores {
				if w > 0 && c.shared {
					stores[w] = stores[0]
					continue
				}
				stores[w] = linearStore(t, proxy, table)
			}
			linearizable(t, stores, proxy)
		})
	}
}

// linearStore is one whose client sends nothing again: each operation has one effect at most.
func linearStore(t *testing.T, proxy *dynamotest.Proxy, table string, o ...func(*dynamodb.Options)) dedupstore.Store {
	s := storeOf(t, clientOf(t, proxy.URL, append(o, once)...), table)
	s.slack = 0
	return impatient{s}
}

func linearizable(t *testing.T, stores []dedupstore.Store, proxy *dynamotest.Proxy) {
	histories := 2
	if proof {
		histories = 200
	}
	seed := rand.Uint64()
	classes := map[string]int{}
	undecided, illegal := 0, 0
	for i := range histories {
		proxy.Inject(faults(seed + uint64(i)))
		history := history(t, stores, seed+uint64(i))
		for _, op := range history {
			classes[op.Output.(lineartest.Output).Class]++
		}
		switch porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is illegal", i, seed+uint64(i))
		}
	}
	proxy.Inject(nil)
	t.Logf("seed %d: %d histories of %d operations, %d illegal, %d undecided; "+
		"%d requests, %d replies dropped, %d delayed, "+
		"%d requests late, %d old items; answers %v", seed, histories, linearWorkers*linearOps, illegal, undecided,
		proxy.Exchanges(), proxy.Dropped(), proxy.Delayed(), proxy.Late(), proxy.Added(), classes)
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	if proxy.Dropped() < histories {
		t.Errorf("%d replies were dropped in %d histories", proxy.Dropped(), histories)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if proof && classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
	}
}

func history(t *testing.T, stores []dedupstore.Store, seed uint64) []porcupine.Operation {
	pool := lineartest.Pool{Group: "linear-" + ids.New()}
	return pool.History(t.Context(), seed, stores, linearOps, func(err error) {
		var record *dedupstore.RecordError
		var setup *dedupstore.SetupError
		if errors.As(err, &record) || errors.As(err, &setup) {
			t.Errorf("not an error of the network: %v", err)
		}
	})
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
			if !proof && name != "writes on no condition" {
				t.Skip("only with ONCEMILL_PROOF=1: it takes more histories")
			}
			proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
			stores, table := make([]dedupstore.Store, linearWorkers), newTable(t)
			for w := range stores {
				stores[w] = linearStore(t, proxy, table, changing(breaks))
			}
			for i := range 60 {
				proxy.Inject(faults(rand.Uint64()))
				history := history(t, stores, rand.Uint64())
				if porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) == porcupine.Illegal {
					t.Logf("found out by history %d", i+1)
					return
				}
			}
			t.Error("60 histories look linearizable")
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
