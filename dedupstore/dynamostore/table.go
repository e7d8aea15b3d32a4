package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/oncemill/oncemill/dedupstore"
)

// Table is a table for records, for [dynamodb.Client.CreateTable]. It is on-demand and protected from deletion; both
// are the owner's choice. Its TTL has to be set when it is there: CreateTable does both.
func Table(name string) *dynamodb.CreateTableInput {
	return &dynamodb.CreateTableInput{
		TableName: &name, BillingMode: types.BillingModePayPerRequest, DeletionProtectionEnabled: aws.Bool(true),
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String(keyAttribute), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String(keyAttribute), KeyType: types.KeyTypeHash}},
	}
}

// createWithin is how long a table may take to come into being.
const createWithin = 3 * time.Minute

// CreateTable makes a table, unless it is there, waits until it can be used, and sets its TTL. Several programs may
// call it at once. The package doc has the same as CloudFormation text. An endpoint that does not know TTLs has none
// then, and [Store.Check] warns.
func CreateTable(ctx context.Context, client *dynamodb.Client, in *dynamodb.CreateTableInput) error {
	if client == nil || in == nil {
		return &dedupstore.InvalidError{Package: "dynamostore", Field: "client or in", Problem: "is nil"}
	}
	var there *types.ResourceInUseException
	if _, err := client.CreateTable(ctx, in); err != nil && !errors.As(err, &there) {
		return fmt.Errorf("dynamostore: create table %q: %w", aws.ToString(in.TableName), err)
	}
	soon := func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 100*time.Millisecond, 2*time.Second
	}
	table := &dynamodb.DescribeTableInput{TableName: in.TableName}
	if err := dynamodb.NewTableExistsWaiter(client, soon).Wait(ctx, table, createWithin); err != nil {
		return fmt.Errorf("dynamostore: create table %q: %w", aws.ToString(in.TableName), err)
	}
	on, err := expires(ctx, client, in.TableName)
	if err == nil && !on {
		_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
			TableName: in.TableName, TimeToLiveSpecification: &types.TimeToLiveSpecification{
				AttributeName: aws.String(expiresAttribute), Enabled: aws.Bool(true),
			},
		})
	}
	if err != nil && !unknown(err) {
		return fmt.Errorf("dynamostore: set the TTL of table %q: %w", aws.ToString(in.TableName), err)
	}
	return nil
}

// expires reports whether a table removes records whose time has come.
func expires(ctx context.Context, client *dynamodb.Client, table *string) (bool, error) {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: table})
	if err != nil || out.TimeToLiveDescription == nil {
		return false, err
	}
	ttl := out.TimeToLiveDescription
	on := ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabled ||
		ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	return on && aws.ToString(ttl.AttributeName) == expiresAttribute, nil
}

// unknown tells of an endpoint that does not know a request.
func unknown(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == "UnknownOperationException"
}
