package main

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/bench/internal/servers"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
)

// tables are those of the store and by hand.
var tables = []string{"oncemill", "hand"}

func startDynamoDB(_ context.Context, s *server) error {
	var units atomic.Int64
	client, giveBack, err := servers.StartDynamoDB(callers, counted(&units))
	if err != nil {
		return err
	}
	s.Cleanup(giveBack)
	s.hand = byItem(client)
	s.reset = func(ctx context.Context) error {
		units.Store(0)
		return freshTables(ctx, client)
	}
	s.extra = func(_ context.Context, messages float64) ([]kit.Figure, error) {
		return []kit.Figure{{Name: "write units/msg", Value: float64(units.Load()) / messages}}, nil
	}
	s.store, err = dynamostore.New(client, dynamostore.Config{Table: tables[0]})
	return err
}

func freshTables(ctx context.Context, client *dynamodb.Client) error {
	for _, table := range tables {
		named := &dynamodb.DescribeTableInput{TableName: &table}
		_, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table})
		var none *types.ResourceNotFoundException
		if err == nil {
			soon := func(o *dynamodb.TableNotExistsWaiterOptions) { o.MinDelay = 10 * time.Millisecond }
			err = dynamodb.NewTableNotExistsWaiter(client, soon).Wait(ctx, named, time.Minute)
		}
		if err != nil && !errors.As(err, &none) {
			return err
		}
		in := dynamostore.Table(table)
		in.DeletionProtectionEnabled = nil
		if err := dynamostore.CreateTable(ctx, client, in); err != nil {
			return err
		}
	}
	return nil
}

// byItem puts an item if there is none, and updates it.
func byItem(client *dynamodb.Client) way {
	type value = map[string]types.AttributeValue
	text := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
	binary := func(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }
	in := func(d time.Duration) types.AttributeValue {
		return &types.AttributeValueMemberN{Value: strconv.FormatInt(time.Now().Add(d).Unix(), 10)}
	}
	return func(ctx context.Context, m message) (func(context.Context) error, error) {
		_, err := client.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: &tables[1], ConditionExpression: aws.String("attribute_not_exists(pk)"),
			Item: value{"pk": text(m.name()), "who": text(m.owner), "rec": binary(claimed), "expires": in(keep)},
		})
		var refused *types.ConditionalCheckFailedException
		if errors.As(err, &refused) {
			err = errDone
		}
		return func(ctx context.Context) error {
			_, err := client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
				TableName: &tables[1], Key: value{"pk": text(m.name())}, ConditionExpression: aws.String("who = :who"),
				UpdateExpression:          aws.String("SET rec = :rec, expires = :end"),
				ExpressionAttributeValues: value{":who": text(m.owner), ":rec": binary(settled), ":end": in(window)},
			})
			return err
		}, err
	}
}

// counted lets every write ask how many units it takes, and adds them up. Writes take whole ones.
func counted(units *atomic.Int64) func(*middleware.Stack) error {
	do := func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		switch p := in.Parameters.(type) {
		case *dynamodb.PutItemInput:
			p.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
		case *dynamodb.UpdateItemInput:
			p.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
		}
		out, meta, err := next.HandleInitialize(ctx, in)
		var taken *types.ConsumedCapacity
		switch o := out.Result.(type) {
		case *dynamodb.PutItemOutput:
			taken = o.ConsumedCapacity
		case *dynamodb.UpdateItemOutput:
			taken = o.ConsumedCapacity
		}
		if taken != nil {
			units.Add(int64(aws.ToFloat64(taken.CapacityUnits)))
		}
		return out, meta, err
	}
	return func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("units", do), middleware.Before)
	}
}

// startCassandra has tables that keep what they have: to empty one takes longer than to measure.
func startCassandra(ctx context.Context, s *server) error {
	session, keyspace, giveBack, err := servers.StartCassandra()
	if err != nil {
		return err
	}
	s.Cleanup(giveBack)
	table := keyspace + ".hand"
	s.hand = byTransaction(session, table)
	store, err := cassandrastore.New(session, cassandrastore.Config{Keyspace: keyspace})
	if err != nil {
		return err
	}
	s.store = store
	return errors.Join(store.Migrate(ctx),
		session.Query("CREATE TABLE "+table+" (id text PRIMARY KEY, owner text, rec blob)").ExecContext(ctx))
}

// byTransaction makes two lightweight transactions, at the consistencies of the store.
func byTransaction(session *gocql.Session, table string) way {
	insert := "INSERT INTO " + table + " (id, owner, rec) VALUES (?, ?, ?) IF NOT EXISTS USING TTL ?"
	update := "UPDATE " + table + " USING TTL ? SET owner = ?, rec = ? WHERE id = ? IF owner = ?"
	cas := func(ctx context.Context, refused error, cql string, values ...any) error {
		q := session.Query(cql, values...).Consistency(gocql.Quorum).SerialConsistency(gocql.Serial)
		applied, err := q.MapScanCASContext(ctx, map[string]any{})
		if err == nil && !applied {
			err = refused
		}
		return err
	}
	return func(ctx context.Context, m message) (func(context.Context) error, error) {
		err := cas(ctx, errDone, insert, m.name(), m.owner, claimed, int(keep.Seconds()))
		return func(ctx context.Context) error {
			return cas(ctx, lost(m), update, int(window.Seconds()), m.owner, settled, m.name(), m.owner)
		}, err
	}
}
