package faults_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Full: 10,000 messages, 50 SIGKILLs of workers. dynalite is in memory, and is not killed.
func TestDynamoDB_ConsumersKilled(t *testing.T) {
	t.Parallel()
	const (
		lease   = 4 * time.Second       // dynalite has one thread, and is slow where others use the machine
		ackWait = lease + 2*time.Second // a lease lives longer by twice MaxSkew
	)
	endpoint := dynamotest.Shared(t)
	client, shut := dynamoClient(endpoint)
	defer shut()
	table := dynamostore.Table("oncemill")
	table.DeletionProtectionEnabled = nil
	if err := dynamostore.CreateTable(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	nats := natstest.Start(t)
	s := newShop(t, []string{nats.URL()}, nats.JetStream(), jetstream.StreamConfig{Replicas: 1}, ackWait, task{
		Dynamo: endpoint, Handler: "unsteady", Work: 10 * time.Millisecond, Lease: lease, MaxWait: lease / 2,
		Grace: 5 * time.Second, Window: 24,
	})
	m := &massacre{shop: s, killed: map[int]time.Time{}}
	b := m.survives(full(10000, 1000), 200, full(50, 4), 0)
	b.MustExplain(t, ledger.HandlerFailed, ledger.HolderKilled, ledger.LostLease, ledger.LostOutcome)
	s.mustHaveGivenUpNothing()
}

func openDynamo(endpoint string) (dedupstore.Store, func(), error) {
	client, shut := dynamoClient(endpoint)
	s, err := dynamostore.New(client, dynamostore.Config{})
	return s, shut, err
}

func dynamoClient(endpoint string) (client *dynamodb.Client, shut func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 128}
	credentials := func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	}
	return dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: &endpoint, Credentials: aws.CredentialsProviderFunc(credentials),
		HTTPClient: &http.Client{Transport: transport},
	}), transport.CloseIdleConnections
}
