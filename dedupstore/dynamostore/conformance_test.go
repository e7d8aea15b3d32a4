package dynamostore

import (
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

// The suite skips what a store does not have.
var (
	_ dedupstore.Inspector = (*Store)(nil)
	_ dedupstore.Checker   = (*Store)(nil)
)

func TestStore_Conforms(t *testing.T) {
	t.Parallel()
	client, table := clientOf(t, dynamotest.Shared(t)), newTable(t)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		s, clock := clocked(t, client, table)
		ttl := func(k dedupstore.Key) (time.Duration, bool) {
			item := itemOf(t, s, k)
			n, ok := item[expiresAttribute].(*types.AttributeValueMemberN)
			if !ok {
				return 0, false
			}
			seconds, err := strconv.ParseInt(n.Value, 10, 64)
			if err != nil {
				t.Error(err)
			}
			return time.Unix(seconds, 0).Sub(clock.Now()), true
		}
		return storetest.Subject{Store: s, Advance: clock.Advance, MaxBytes: maxItem, TTL: ttl}
	})
}

func itemOf(t testing.TB, s *Store, k dedupstore.Key) map[string]types.AttributeValue {
	t.Helper()
	out, err := s.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &s.table, Key: primary(nameOf(k))})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

func BenchmarkStore(b *testing.B) {
	s := newStore(b)
	storetest.Benchmarks(b, func(*testing.B) dedupstore.Store { return s })
}
