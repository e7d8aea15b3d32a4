package dynamostore

import (
	"context"
	"flag"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "8") // unless -parallel says otherwise: tests wait for the server, and for leases
	leaktest.Main(m)
}

// clientOf returns a client of an endpoint, with connections of its own.
func clientOf(t testing.TB, endpoint string, options ...func(*dynamodb.Options)) *dynamodb.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: maxInFlight}
	t.Cleanup(transport.CloseIdleConnections)
	credentials := func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	}
	return dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: &endpoint, Credentials: aws.CredentialsProviderFunc(credentials),
		HTTPClient: &http.Client{Transport: transport},
	}, options...)
}

// newTable makes a table of its own for a test.
func newTable(t testing.TB) (name string) {
	t.Helper()
	name = "test-" + ids.New()
	in := Table(name)
	in.DeletionProtectionEnabled = nil
	if err := CreateTable(t.Context(), clientOf(t, dynamotest.Shared(t)), in); err != nil {
		t.Fatal(err)
	}
	return name
}

// storeOf returns a store whose leases live hardly longer than they should, as the cases of the suite want it.
func storeOf(t testing.TB, client *dynamodb.Client, table string) *Store {
	t.Helper()
	s, err := New(client, Config{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	s.slack, s.within = 20*time.Millisecond, 2*time.Minute
	return s
}

// clocked returns a store of a table whose clock stands still until it is moved.
func clocked(t testing.TB, client *dynamodb.Client, table string) (*Store, *claimtest.Clock) {
	t.Helper()
	s, clock := storeOf(t, client, table), claimtest.NewClock()
	s.wall = clock.Now
	return s, clock
}

// newStore returns a store with a table of its own.
func newStore(t testing.TB, options ...func(*dynamodb.Options)) *Store {
	t.Helper()
	return storeOf(t, clientOf(t, dynamotest.Shared(t), options...), newTable(t))
}

// throughProxy returns a store behind a proxy, whose client sends nothing again.
func throughProxy(t testing.TB) (*Store, *dynamotest.Proxy) {
	t.Helper()
	proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
	return storeOf(t, clientOf(t, proxy.URL, once), newTable(t)), proxy
}

func once(o *dynamodb.Options) { o.RetryMaxAttempts = 1 }

// A tally counts the requests of a client.
type tally struct{ reads, writes atomic.Int64 }

func (c *tally) count(o *dynamodb.Options) {
	changing(func(in any) {
		switch in.(type) {
		case *dynamodb.GetItemInput:
			c.reads.Add(1)
		case *dynamodb.PutItemInput:
			c.writes.Add(1)
		}
	})(o)
}

// wants looks at the counts since the last look.
func (c *tally) wants(t *testing.T, what string, reads, writes int64) {
	t.Helper()
	if r, w := c.reads.Swap(0), c.writes.Swap(0); r != reads || w != writes {
		t.Errorf("%s took %d reads and %d writes, want %d and %d", what, r, w, reads, writes)
	}
}

var (
	key       = claimtest.Key
	request   = claimtest.Request
	claim     = claimtest.Claim
	settle    = claimtest.Settle
	succeeded = claimtest.Succeeded
)
