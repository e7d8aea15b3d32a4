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
	"github.com/oncemill/oncemill/internal/pace"
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
	slack    time.Duration // how much longer leases live than they were asked for
	clock    clock
	recent   recent
	inFlight chan struct{}
}

// New returns a store. It asks for nothing: a table that is missing, or does not fit, is a [*dedupstore.SetupError] of
// the first operation, and of Check.
func New(client *dynamodb.Client, c Config) (*Store, error) {
	if err := c.validate(client); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	return &Store{
		client: client, table: c.Table, slack: 2 * c.MaxSkew, clock: clock{bound: c.MaxSkew},
		inFlight: make(chan struct{}, maxInFlight),
	}, nil
}

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, func(ctx context.Context, w *recordstore.Work) error {
		_, claimed := s.recent.get(w.Key)
		// Where the clock is not known to be right, a read comes first, whose reply tells the time.
		return s.change(ctx, w, revision{}, !claimed && s.clock.right(), true)
	})
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.changeRecent)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.changeRecent)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.changeRecent)
}

// changeRecent does a work with the record that this store wrote last, if it knows it.
func (s *Store) changeRecent(ctx context.Context, w *recordstore.Work) error {
	seen, known := s.recent.get(w.Key)
	return s.change(ctx, w, seen, known, false)
}

// now is the time by this host's clock. Whatever lasts gets the slack.
func (s *Store) now() recordstore.Time {
	now := time.Now().Truncate(time.Microsecond)
	return recordstore.Time{Early: now, Late: now.Add(s.slack)}
}

// Pauses between tries to change a record that others change, too. Each try that fails means that somebody's succeeded.
const (
	maxTries   = 32
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// change does a work. Guessed says that what was seen may be out of date. A write proves that it was not; what writes
// nothing is decided by what the table has. Claims need a clock that is right.
func (s *Store) change(
	ctx context.Context, w *recordstore.Work, seen revision, guessed, claims bool,
) (err error) {
	unread, pause := !guessed, firstPause
	for range maxTries {
		if unread {
			if seen, err = s.read(ctx, w.Key); err != nil {
				return err
			}
			unread, guessed = false, false
		}
		next := w.Apply(seen.record, s.now())
		switch {
		case next == nil && !guessed:
			return nil
		case next == nil:
			unread = true
			continue
		case claims && !s.clock.right():
			return s.clock.wrong()
		}
		written := newRevision(next)
		old, err := s.write(ctx, w.Key, written, seen.number)
		switch {
		case err == nil && claims && !s.clock.right(): // the reply showed it: nobody may run on this lease
			return s.clock.wrong()
		case err == nil:
			s.recent.put(w.Key, written)
			return nil
		}
		s.recent.forget(w.Key)
		if !errors.Is(err, errConflict) {
			return err
		}
		if !guessed {
			if !pace.Sleep(ctx, pause) {
				return context.Cause(ctx)
			}
			pause = min(2*pause, lastPause)
		}
		if unread = old == nil || !guessed; !unread {
			seen, guessed = *old, false
		}
	}
	return fmt.Errorf("dynamostore: key %q: others changed it %d times meanwhile", nameOf(w.Key), maxTries)
}

// errConflict says that a record is not the one that was seen.
var errConflict = errors.New("dynamostore: somebody else wrote the record meanwhile")

// read asks for a record. The answer has all writes that were confirmed before.
func (s *Store) read(ctx context.Context, key dedupstore.Key) (revision, error) {
	in := &dynamodb.GetItemInput{TableName: &s.table, Key: primary(nameOf(key)), ConsistentRead: aws.Bool(true)}
	sent := time.Now()
	out, err := do(ctx, s, s.client.GetItem, in)
	if err != nil {
		return revision{}, err
	}
	s.clock.learn(out.ResultMetadata, sent)
	return decode(nameOf(key), out.Item)
}

// write writes a record if the number of the one that is there is the given one; 0: if there is none. With errConflict
// it returns the one that is there, if the endpoint tells, and nil if not.
func (s *Store) write(
	ctx context.Context, key dedupstore.Key, written revision, last int64,
) (old *revision, err error) {
	in := &dynamodb.PutItemInput{
		TableName: &s.table, Item: encode(key, &written),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if size := itemSize(in.Item); size > maxItem {
		return nil, fmt.Errorf("dynamostore: %w: a record of %d bytes does not fit an item of %d", dedupstore.ErrFull,
			size, maxItem)
	}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = condition(last)
	sent := time.Now()
	out, err := do(ctx, s, s.client.PutItem, in)
	if err == nil {
		s.clock.learn(out.ResultMetadata, sent)
		return nil, nil
	}
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return nil, err
	}
	if failed.Item == nil {
		return nil, errConflict
	}
	seen, err := decode(nameOf(key), failed.Item)
	if err != nil {
		return nil, err
	}
	return &seen, errConflict
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
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	out, err := send(bounded, in)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	return out, nil
}
