package dynamostore

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
)

// Look implements [dedupstore.Inspector], by a read for each key.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	return s.records.Look(ctx, keys)
}

// pageSize is how many records a page looks at, at most. DynamoDB ends one after a MB, too.
const pageSize = 2000

// List implements [dedupstore.Inspector], by one request that scans. It reads all records that it looks at, and may not
// see what was written in the last second. What cannot be read is an error beside the page.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	in := &dynamodb.ScanInput{
		TableName: &s.table, Limit: aws.Int32(pageSize), ProjectionExpression: aws.String("#k, #n, #r"),
		ExpressionAttributeNames: map[string]string{"#k": keyAttribute, "#n": numberAttribute, "#r": recordAttribute},
	}
	if begins := beginning(f); begins != "" {
		in.FilterExpression = aws.String("begins_with(#k, :begins)")
		in.ExpressionAttributeValues = map[string]types.AttributeValue{
			":begins": &types.AttributeValueMemberS{Value: begins},
		}
	}
	if after != "" {
		in.ExclusiveStartKey = primary(after)
	}
	out, err := do(ctx, s, s.client.Scan, in)
	if err != nil {
		return dedupstore.Page{}, err
	}
	page, now := dedupstore.Page{Looked: int(out.ScannedCount)}, s.wall()
	if last, ok := out.LastEvaluatedKey[keyAttribute].(*types.AttributeValueMemberS); ok {
		page.Next = last.Value
	}
	var unreadable []error
	for _, item := range out.Items {
		name, _ := item[keyAttribute].(*types.AttributeValueMemberS)
		if name == nil || isScopes(name.Value) {
			continue
		}
		r, err := decode(name.Value, item)
		if err != nil {
			unreadable = append(unreadable, err)
			continue
		}
		key, ok := keyOf(name.Value)
		if seen := r.Record.Look(key, now); ok && f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
	}
	return page, errors.Join(unreadable...)
}

// beginning is what the names of all records begin with that a filter lets through.
func beginning(f dedupstore.Filter) string {
	var parts []string
	for _, part := range [...]string{f.Tenant, f.Group, f.Handler} {
		if part == "" {
			return scopeOf(parts...)
		}
		parts = append(parts, part)
	}
	return scopeOf(parts...) + f.ID
}

// Count implements [dedupstore.Inspector] by listing.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	page, err := s.List(ctx, f, after)
	return page.Count(), err
}

// Change implements [dedupstore.Inspector]. After a lost reply the client may send the change once more, and the error
// may then refuse what has been done.
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	return s.records.Change(ctx, seen, c)
}
