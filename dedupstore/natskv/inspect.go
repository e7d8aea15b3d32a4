package natskv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// Look implements [dedupstore.Inspector].
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	records, errs := make([]dedupstore.Record, len(keys)), make([]error, len(keys))
	var group sync.WaitGroup
	for i, key := range keys {
		group.Go(func() {
			seen, err := s.read(ctx, s.subject(key))
			records[i], errs[i] = seen.record.Look(key, now.Early), err
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return records, nil
}

const (
	pageSize  = 2000 // records of a page
	fetchSize = 200
)

// List implements [dedupstore.Inspector]. It reads the stream in its order, by a consumer that lives for the page. A
// record that changes meanwhile comes again. What cannot be read is an error beside the page.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	now, err := s.now(ctx)
	if err != nil {
		return dedupstore.Page{}, err
	}
	var page dedupstore.Page
	var unreadable []error
	visit := func(m jetstream.Msg) {
		rec, err := decode(m.Subject(), m.Headers(), m.Data())
		if err != nil {
			unreadable = append(unreadable, err)
			return
		}
		key, ok := s.key(m.Subject())
		if seen := rec.Look(key, now.Early); ok && f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
	}
	page.Looked, page.Total, page.Next, err = s.walk(ctx, f, after, visit)
	if err != nil {
		return dedupstore.Page{}, fmt.Errorf("natskv: list: %w", err)
	}
	return page, errors.Join(unreadable...)
}

// Count implements [dedupstore.Inspector] by listing.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	page, err := s.List(ctx, f, after)
	return page.Count(), err
}

// walk visits the values of a page, in the order of their revisions.
func (s *Store) walk(
	ctx context.Context, f dedupstore.Filter, after string, visit func(jetstream.Msg),
) (looked, total int, next string, err error) {
	from := uint64(1)
	if after != "" {
		if from, err = strconv.ParseUint(after, 10, 64); err != nil || from == 0 {
			return 0, 0, "", &dedupstore.InvalidError{
				Package: "natskv", Field: "after", Problem: fmt.Sprintf("is %q, want the Next of a page", after)}
		}
	}
	cons, err := s.js.CreateConsumer(ctx, s.stream(), jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		FilterSubject: s.filter(f), InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return 0, 0, "", s.failed(ctx, err)
	}
	name := cons.CachedInfo().Name
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
		defer cancel()
		_ = s.js.DeleteConsumer(ctx, s.stream(), name) // else the server does, after a minute
	}()
	total = int(cons.CachedInfo().NumPending)
	for left := cons.CachedInfo().NumPending; left > 0; {
		if looked >= pageSize {
			return looked, total, strconv.FormatUint(from, 10), nil
		}
		batch, err := cons.FetchNoWait(fetchSize)
		if err != nil {
			return 0, 0, "", s.failed(ctx, err)
		}
		got := false
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return 0, 0, "", err
			}
			got, left, from = true, meta.NumPending, meta.Sequence.Stream+1
			looked++
			visit(m)
		}
		// In a cluster a new consumer may not listen yet.
		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, nats.ErrNoResponders) {
			return 0, 0, "", s.failed(ctx, err)
		}
		if got {
			continue
		}
		info, err := cons.Info(ctx) // what was pending may be gone
		if err != nil {
			return 0, 0, "", s.failed(ctx, err)
		}
		if left = info.NumPending; left > 0 && !pace.Sleep(ctx, firstPause) {
			return 0, 0, "", context.Cause(ctx)
		}
	}
	return looked, total, "", nil
}

// filter is the subject that lets through what the filter's names do.
func (s *Store) filter(f dedupstore.Filter) string {
	var b strings.Builder
	b.WriteString("$KV." + s.bucket)
	for _, part := range [...]string{f.Tenant, f.Group, f.Handler, f.ID} {
		b.WriteByte('.')
		if part == "" {
			b.WriteByte('*')
		} else {
			b.Write(appendToken(nil, part))
		}
	}
	return b.String()
}

// markerTTL is how long the bucket shows that a record was removed.
const markerTTL = time.Minute

// Change implements [dedupstore.Inspector].
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	subject := s.subject(seen.Key)
	for range maxTries {
		found, err := s.read(ctx, subject)
		if err != nil {
			return err
		}
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		next, err := found.record.Change(seen, c, now.Early)
		if err != nil {
			return err
		}
		s.recent.forget(subject)
		if next == nil {
			_, err = s.publish(ctx, subject, nil, found.sequence, nats.Header{
				operationHeader: {"DEL"}, jetstream.MsgTTLHeader: {markerTTL.String()},
			})
		} else {
			_, err = s.write(ctx, subject, next, found.sequence, now)
		}
		switch {
		case err == nil:
			return nil
		case !conflict(err):
			return s.failed(ctx, err)
		case !pace.Sleep(ctx, firstPause):
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("natskv: key %q: others changed it %d times meanwhile", subject, maxTries)
}
