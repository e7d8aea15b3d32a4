package natskv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
)

// Look implements [dedupstore.Inspector].
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	return s.records.Look(ctx, keys)
}

const (
	pageSize  = 5000    // records of a page at most; the server looks at all subjects for each
	pageBytes = 8 << 20 // after which a page ends
)

// List implements [dedupstore.Inspector]. It reads the stream in its order, from any replica; one that lags does not
// have the last writes. A record that changes meanwhile comes again. What cannot be read is an error beside the page.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	now, err := s.now(ctx)
	if err != nil {
		return dedupstore.Page{}, err
	}
	from, total := uint64(1), 0
	if after != "" {
		if _, err := fmt.Sscanf(after, "%d.%d", &from, &total); err != nil {
			return dedupstore.Page{}, &dedupstore.InvalidError{
				Package: "natskv", Field: "after", Problem: fmt.Sprintf("is %q, want the Next of a page", after)}
		}
	}
	values, pending, err := s.values(ctx, s.filter(f), from)
	if err != nil {
		return dedupstore.Page{}, err
	}
	page := dedupstore.Page{Looked: len(values), Total: max(total, len(values)+pending)}
	var unreadable []error
	for _, m := range values {
		subject := m.Header.Get(jetstream.SubjectHeader)
		key, ok := s.key(subject)
		if !ok { // what is known of scopes
			continue
		}
		rec, err := s.decode(subject, m.Header, m.Data)
		if err != nil {
			unreadable = append(unreadable, err)
			continue
		}
		if seen := rec.Look(key, now.Early); f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
	}
	if pending > 0 {
		last, err := strconv.ParseUint(values[len(values)-1].Header.Get(jetstream.SequenceHeader), 10, 64)
		if err != nil {
			return dedupstore.Page{}, fmt.Errorf("natskv: list: %w", err)
		}
		page.Next = fmt.Sprintf("%d.%d", last+1, page.Total)
	}
	return page, errors.Join(unreadable...)
}

// Count implements [dedupstore.Inspector] by listing.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	page, err := s.List(ctx, f, after)
	return page.Count(), err
}

// values asks for values from a revision on, and returns how many there are behind them (ADR-31 of NATS: a batch of
// direct gets).
func (s *Store) values(ctx context.Context, filter string, from uint64) (values []*nats.Msg, pending int, err error) {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	request, err := json.Marshal(map[string]any{
		"seq": from, "next_by_subj": filter, "batch": pageSize, "max_bytes": pageBytes,
	})
	if err != nil {
		return nil, 0, err
	}
	nc := s.js.Conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, 0, s.failed(ctx, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(s.api+"DIRECT.GET."+s.stream, sub.Subject, request); err != nil {
		return nil, 0, s.failed(ctx, err)
	}
	for {
		m, err := sub.NextMsgWithContext(bounded)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, 0, s.setup("lists nothing now: set AllowDirect of its stream, or wait for its servers", err)
		}
		if err != nil {
			return nil, 0, s.failed(ctx, err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			values = append(values, m)
		case "204": // the end
			if pending, err = strconv.Atoi(m.Header.Get("Nats-Num-Pending")); err != nil || len(values) == 0 {
				pending = 0
			}
			return values, pending, nil
		case "404":
			return nil, 0, nil
		default:
			return nil, 0, fmt.Errorf("natskv: list: the server answered %s %s", status, m.Header.Get("Description"))
		}
	}
}

// filter is the subject that lets through what the filter's names do.
func (s *Store) filter(f dedupstore.Filter) string {
	if !s.shared && f.Tenant+f.Group+f.Handler+f.ID == "" {
		return ">" // the server compares each subject with any other
	}
	var b strings.Builder
	b.WriteString(s.prefix)
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

// Change implements [dedupstore.Inspector].
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	return s.records.Change(ctx, seen, c)
}
