package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

const (
	// maxInFlight is how many requests of a store are under way at once. Others wait.
	maxInFlight = 128

	// answerWithin is how long a request may take, with what the client sends again.
	answerWithin = 10 * time.Second
)

// Store keeps records in a table. It is a [dedupstore.Inspector] and a [dedupstore.Checker], and safe for concurrent
// use.
type Store struct {
	client   *dynamodb.Client
	table    string
	slack    time.Duration    // how much longer leases live than they were asked for
	wall     func() time.Time // what leases are counted by: time.Now, or a clock that tests move
	within   time.Duration    // answerWithin; tests are more patient
	clock    clock
	records  recordstore.Records
	inFlight chan struct{}
}

// New returns a store. It asks for nothing: a table that is missing, or does not fit, is a [*dedupstore.SetupError] of
// the first operation, and of Check.
func New(client *dynamodb.Client, c Config) (*Store, error) {
	if err := c.validate(client); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	s := &Store{
		client: client, table: c.Table, slack: 2 * c.MaxSkew, clock: clock{bound: c.MaxSkew},
		wall: time.Now, within: answerWithin,
		inFlight: make(chan struct{}, maxInFlight),
	}
	s.records = recordstore.Records{
		Package: "dynamostore", Now: s.now, Read: s.read, Write: s.write, Grant: s.grant,
	}
	return s, nil
}

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := recordstore.Claim(ctx, requests, nil, func(ctx context.Context, w *recordstore.Work) error {
		// Where the clock is not known to be right, a read comes first, whose reply tells the time.
		return s.records.Claim(ctx, w, func(context.Context) bool { return s.clock.right() })
	})
	for i := range results {
		// Nobody may run on a lease that the clock began if a reply shows that it is wrong, also if they ask again.
		if err := s.clock.wrong(); err != nil && results[i].Answer.Claim.Lease != 0 {
			results[i] = dedupstore.ClaimResult{Err: err}
		}
	}
	return results
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.records.Do)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.records.Do)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.records.Do)
}

// now is the time by this host's clock. Whatever lasts gets the slack.
func (s *Store) now(context.Context) (recordstore.Time, error) {
	now := s.wall().Truncate(time.Microsecond)
	return recordstore.Time{Early: now, Late: now.Add(s.slack)}, nil
}

// read asks for a record. The answer has all writes that were confirmed before.
func (s *Store) read(ctx context.Context, key dedupstore.Key) (recordstore.Revision, error) {
	in := &dynamodb.GetItemInput{TableName: &s.table, Key: primary(nameOf(key)), ConsistentRead: aws.Bool(true)}
	sent := time.Now()
	out, err := do(ctx, s, s.client.GetItem, in)
	if err != nil {
		return recordstore.Revision{}, err
	}
	s.clock.learn(out.ResultMetadata, sent)
	return decode(nameOf(key), out.Item)
}

// grant is write for claims and changes, which need a clock that is right.
func (s *Store) grant(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, now recordstore.Time,
) (number int64, there *recordstore.Revision, err error) {
	if err := s.clock.wrong(); err != nil {
		return 0, nil, err
	}
	return s.write(ctx, key, next, seen, now)
}

// write writes a record if the number of the one that is there is the given one; 0: if there is none. With a conflict
// it returns the one that is there, if the endpoint tells. It is a [recordstore.Write].
func (s *Store) write(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, _ recordstore.Time,
) (number int64, there *recordstore.Revision, err error) {
	if next == nil {
		return 0, nil, s.remove(ctx, key, seen)
	}
	number = recordstore.NewNumber()
	in := &dynamodb.PutItemInput{
		TableName: &s.table, Item: encode(key, number, next),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if size := itemSize(in.Item) + recordstore.Growth(next); size > maxItem {
		return 0, nil, fmt.Errorf("dynamostore: %w: a record of up to %d bytes does not fit an item of %d",
			dedupstore.ErrTooLarge, size, maxItem)
	}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = condition(seen)
	sent := time.Now()
	out, err := do(ctx, s, s.client.PutItem, in)
	if err == nil {
		s.clock.learn(out.ResultMetadata, sent)
		return number, nil, nil
	}
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return 0, nil, err
	}
	s.clock.refused(err, sent)
	if failed.Item == nil {
		return 0, nil, recordstore.ErrConflict
	}
	found, err := decode(nameOf(key), failed.Item)
	switch {
	case err != nil:
		return 0, nil, err
	case found.Number == number: // the client has sent it twice, as the first reply was lost
		return number, nil, nil
	}
	return 0, &found, recordstore.ErrConflict
}

// remove removes a record if its number is the given one.
func (s *Store) remove(ctx context.Context, key dedupstore.Key, seen int64) error {
	in := &dynamodb.DeleteItemInput{TableName: &s.table, Key: primary(nameOf(key))}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = condition(seen)
	_, err := do(ctx, s, s.client.DeleteItem, in)
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		return recordstore.ErrConflict
	}
	return err
}

// condition is that the record that is there has a number; 0: that there is none.
func condition(last int64) (*string, map[string]string, map[string]types.AttributeValue) {
	if last == 0 {
		return aws.String("attribute_not_exists(#k)"), map[string]string{"#k": keyAttribute}, nil
	}
	return aws.String("#n = :last"), map[string]string{"#n": numberAttribute},
		map[string]types.AttributeValue{":last": number(last)}
}

// do sends a request when there is room for it.
func do[In, Out any](
	ctx context.Context, s *Store, send func(context.Context, *In, ...func(*dynamodb.Options)) (*Out, error), in *In,
) (*Out, error) {
	select {
	case s.inFlight <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.inFlight }()
	bounded, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	out, err := send(bounded, in)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	return out, nil
}
