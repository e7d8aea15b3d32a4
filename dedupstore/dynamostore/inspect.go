package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// Look implements [dedupstore.Inspector], by a read for each key.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	records, errs := make([]dedupstore.Record, len(keys)), make([]error, len(keys))
	var group sync.WaitGroup
	for i, key := range keys {
		group.Go(func() {
			seen, err := s.read(ctx, key)
			records[i], errs[i] = seen.record.Look(key, s.now().Early), err
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return records, nil
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
	page, now := dedupstore.Page{Looked: int(out.ScannedCount)}, s.now().Early
	if last, ok := out.LastEvaluatedKey[keyAttribute].(*types.AttributeValueMemberS); ok {
		page.Next = last.Value
	}
	var unreadable []error
	for _, item := range out.Items {
		name, _ := item[keyAttribute].(*types.AttributeValueMemberS)
		if name == nil {
			continue
		}
		r, err := decode(name.Value, item)
		if err != nil {
			unreadable = append(unreadable, err)
			continue
		}
		key, ok := keyOf(name.Value)
		if seen := r.record.Look(key, now); ok && f.Matches(&seen) {
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

// Change implements [dedupstore.Inspector].
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	for range maxTries {
		found, err := s.read(ctx, seen.Key)
		if err != nil {
			return err
		}
		next, err := found.record.Change(seen, c, s.now().Early)
		if err != nil {
			return err
		}
		s.recent.forget(seen.Key)
		if next == nil {
			err = s.remove(ctx, seen.Key, found.number)
		} else {
			_, err = s.write(ctx, seen.Key, newRevision(next), found.number)
		}
		switch {
		case !errors.Is(err, errConflict):
			return err
		case !pace.Sleep(ctx, firstPause):
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("dynamostore: key %q: others changed it %d times meanwhile", nameOf(seen.Key), maxTries)
}

// remove removes a record if its number is the given one.
func (s *Store) remove(ctx context.Context, key dedupstore.Key, last int64) error {
	in := &dynamodb.DeleteItemInput{TableName: &s.table, Key: primary(nameOf(key))}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = condition(last)
	_, err := do(ctx, s, s.client.DeleteItem, in)
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		return errConflict
	}
	return err
}
