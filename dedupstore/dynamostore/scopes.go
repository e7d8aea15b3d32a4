package dynamostore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

// scopes keep what is known of a group in one item, beside the records.
func (s *Store) scopes() recordstore.Scopes {
	return recordstore.Scopes{Package: "dynamostore", Read: s.readScopes, Write: s.writeScopes}
}

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	return s.scopes().NoteScopes(ctx, uses)
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s *Store) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	return s.scopes().Scopes(ctx, tenant, group)
}

const scopesPrefix = "scopes:"

// scopesName is where the scopes of a group are: scopes:tenant:group. It has a colon less than the name of a record.
func scopesName(tenant, group string) string {
	return scopesPrefix + strings.TrimSuffix(scopeOf(tenant, group), ":")
}

// isScopes reports whether an item of that name has scopes.
func isScopes(name string) bool {
	return strings.HasPrefix(name, scopesPrefix) && strings.Count(name, ":") == 2
}

func (s *Store) readScopes(ctx context.Context, tenant, group string) (v recordstore.ScopesValue, err error) {
	in := &dynamodb.GetItemInput{
		TableName: &s.table, Key: primary(scopesName(tenant, group)), ConsistentRead: aws.Bool(true),
	}
	out, err := do(ctx, s, s.client.GetItem, in)
	if err != nil {
		return v, err
	}
	if data, ok := out.Item[recordAttribute].(*types.AttributeValueMemberB); ok {
		v.Data = data.Value
	}
	if n, ok := out.Item[numberAttribute].(*types.AttributeValueMemberN); ok {
		v.Number, err = strconv.ParseInt(n.Value, 10, 64)
	}
	return v, err
}

func (s *Store) writeScopes(
	ctx context.Context, tenant, group string, data []byte, seen recordstore.ScopesValue,
) error {
	item := primary(scopesName(tenant, group))
	item[numberAttribute] = number(recordstore.NewNumber())
	item[recordAttribute] = &types.AttributeValueMemberB{Value: data}
	item[expiresAttribute] = number(time.Now().Add(dedupstore.ScopeRetention).Unix())
	in := &dynamodb.PutItemInput{TableName: &s.table, Item: item}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = condition(seen.Number)
	_, err := do(ctx, s, s.client.PutItem, in)
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) { // also if the client has sent it twice; then the next try finds nothing to change
		return recordstore.ErrConflict
	}
	return err
}
