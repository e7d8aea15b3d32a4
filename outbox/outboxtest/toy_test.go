package outboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A toy is an outbox in memory, written for this test from the contract alone, that can break one rule.
type toy struct {
	broken string // the rule, or ""

	mu   sync.Mutex
	rows []*toyRow // in the order of their numbers
	last int64     // number
	read int64     // the greatest number that was handed out

	woken   chan struct{}
	gap     chan struct{}   // has one value while a transaction of a broken toy keeps others from writing
	removed map[string]bool // IDs
}

type toyRow struct {
	outbox.Row
	copy                string
	written, first, due time.Time
	published, died     time.Time
	token               string
	leaseEnds           time.Time
	state               outbox.State // "" while pending
	text                string
}

func newToy(broken string) *toy {
	return &toy{
		broken: broken, woken: make(chan struct{}, 1), gap: make(chan struct{}, 1), removed: map[string]bool{},
	}
}

func (s *toy) Woken() <-chan struct{} { return s.woken }

func (s *toy) Wake() {
	if s.is("wake-is-lost") {
		return
	}
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *toy) spoil(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.Message.ID == id && !s.is("unreadable-row-looks-fine") {
			r.Problem = "header cannot be read"
		}
	}
	return nil
}

// is tells whether the toy breaks the rule.
func (s *toy) is(rule string) bool { return s.broken == rule }

func (s *toy) subject() Subject {
	return Subject{
		Store: s, Ordered: true, Concurrent: true, Spoil: s.spoil,
		Begin: func(context.Context) (Tx, error) { return &toyTx{toy: s}, nil },
		Far: func() (outbox.Store, Link) {
			f := &farToy{toy: s, line: make(chan struct{}, 1)}
			return f, f
		},
	}
}

type toyTx struct {
	toy     *toy
	rows    []*toyRow
	revived []*toyRow
	header  map[*toyRow]producer.Header // of those that were revived
	over    bool
	blocks  bool // others
}

// wait waits while another transaction keeps this one from writing.
func (tx *toyTx) wait(ctx context.Context) error {
	if tx.blocks {
		return nil
	}
	select {
	case tx.toy.gap <- struct{}{}:
		<-tx.toy.gap
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// block keeps others from writing until the transaction ends.
func (tx *toyTx) block() {
	if !tx.blocks {
		tx.toy.gap <- struct{}{}
		tx.blocks = true
	}
}

func (tx *toyTx) unblock() {
	if tx.blocks {
		<-tx.toy.gap
		tx.blocks = false
	}
}

func (tx *toyTx) Publish(ctx context.Context, messages ...producer.Message) error {
	s := tx.toy
	if err := tx.wait(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.over && !s.is("writes-after-the-commit") {
		return errors.New("the transaction is over")
	}
	if s.is("calls-are-cut") {
		messages = messages[:min(len(messages), 100)]
	}
	var rows []*toyRow
	for i, m := range messages {
		if m.ID == "" && s.is("missing-IDs-are-one") {
			m.ID = "minted"
		}
		own := m.Header
		if err := producer.Stamp(ctx, &m); err != nil {
			return err
		}
		if s.is("stamps-the-callers-header") && own != nil {
			own[producer.HeaderID] = m.ID
		}
		if !s.is("resend-is-copied") {
			maps.DeleteFunc(m.Header, func(name, _ string) bool { return strings.EqualFold(name, producer.HeaderResend) })
		}
		if field := s.problem(m); field != "" {
			if s.is("refused-call-writes-a-part") {
				tx.rows = append(tx.rows, rows...)
			}
			return fmt.Errorf("message %d: %w", i, &dedupstore.InvalidError{Package: "outbox", Field: field, Problem: "cannot be kept"})
		}
		s.last++
		r := &toyRow{written: time.Now(), first: time.Now()}
		r.Number, r.Message, r.OrderKey = s.last, m, m.Key
		r.Message.Header = maps.Clone(m.Header)
		r.Message.Payload = append([]byte{}, m.Payload...)
		if s.is("empty-payload-is-nil") {
			r.Message.Payload = append([]byte(nil), m.Payload...)
		}
		if s.is("payload-is-text") {
			r.Message.Payload = bytes.ToValidUTF8(m.Payload, []byte("?"))
		}
		if s.is("header-names-are-folded") {
			delete(r.Message.Header, "A")
		}
		if !s.is("copies-are-one") {
			r.copy = m.Header.Get(producer.HeaderPurpose) + "\x00" + m.Header.Get(producer.HeaderGeneration)
			if s.is("copies-look-alike") {
				r.copy = strings.ReplaceAll(r.copy, "\x00", "")
			}
		}
		if m.NotBefore.After(r.first) && !s.is("delay-ignored") {
			r.first = m.NotBefore
		}
		r.Message.NotBefore, r.due = time.Time{}, r.first
		rows = append(rows, r)
	}
	for _, r := range rows {
		known := s.find(r)
		if i := slices.IndexFunc(tx.rows, r.same); known == nil && i >= 0 {
			known = tx.rows[i]
		}
		if known != nil && s.is("repeated-write-blocks-all") ||
			s.removed[r.Message.ID] && s.is("removed-row-blocks-all") {
			tx.block()
		}
		switch {
		case known == nil || s.is("same-message-twice"):
			tx.rows = append(tx.rows, r)
		case known.Message.Key != r.Message.Key && !s.is("conflict-of-keys-in-silence"),
			!bytes.Equal(known.Message.Payload, r.Message.Payload) && !s.is("conflict-in-silence"):
			return &outbox.ConflictError{ID: r.Message.ID, Topic: r.Message.Topic}
		case known.state == outbox.Dead && !s.is("dead-stays-dead"):
			tx.revived = append(tx.revived, known)
			if tx.header == nil {
				tx.header = map[*toyRow]producer.Header{}
			}
			tx.header[known] = r.Message.Header
		}
	}
	if tx.over {
		tx.apply()
	}
	if s.is("visible-before-commit") || s.is("revived-before-commit") && len(rows) > 0 && len(tx.rows) == 0 {
		tx.apply()
	}
	return nil
}

// problem names the field of a message that cannot be kept, or "".
func (s *toy) problem(m producer.Message) string {
	switch {
	case m.Topic == "":
		return "Message.Topic"
	case !utf8.ValidString(m.Key) && !s.is("keys-are-any-bytes"):
		return "Message.Key"
	case !m.NotBefore.IsZero() && (m.NotBefore.Before(time.Unix(0, 0)) || m.NotBefore.UTC().Year() > 9999) &&
		!s.is("far-delays-wrap"):
		return "Message.NotBefore"
	}
	for name, value := range m.Header {
		if !utf8.ValidString(value) {
			return fmt.Sprintf("header %q", name)
		}
	}
	return ""
}

func (r *toyRow) same(o *toyRow) bool {
	return r.Message.ID == o.Message.ID && r.Message.Topic == o.Message.Topic && r.copy == o.copy
}

func (s *toy) find(r *toyRow) *toyRow {
	for _, o := range s.rows {
		if o.same(r) {
			return o
		}
	}
	return nil
}

func (tx *toyTx) apply() {
	s := tx.toy
	s.rows = append(s.rows, tx.rows...)
	for _, r := range tx.revived {
		r.state, r.Failures, r.Unknowns, r.due = "", 0, 0, time.Now()
		if !s.is("revived-keeps-its-header") {
			r.Message.Header = tx.header[r]
		}
	}
	tx.rows, tx.revived = nil, nil
	slices.SortFunc(s.rows, func(a, b *toyRow) int { return int(a.Number - b.Number) })
}

func (tx *toyTx) Commit(context.Context) error {
	tx.toy.mu.Lock()
	defer tx.toy.mu.Unlock()
	tx.apply()
	tx.over = true
	tx.unblock()
	return nil
}

func (tx *toyTx) Rollback(context.Context) error {
	if tx.toy.is("rollback-commits") {
		return tx.Commit(context.Background())
	}
	tx.unblock()
	return nil
}

func (s *toy) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	s.dawdle()
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, row := range s.rows { // leases that ended
		if row.token != "" && !now.Before(row.leaseEnds) && !s.is("lease-never-ends") {
			row.due = row.first
			if !s.is("ended-lease-is-not-counted") && r.Suspects {
				row.Unknowns++
				row.token = ""
			} else if s.is("ended-lease-is-not-counted") {
				row.token = ""
			}
		}
	}
	candidates := slices.Clone(s.rows)
	if !s.is("newest-first") {
		slices.SortStableFunc(candidates, func(a, b *toyRow) int { return a.due.Compare(b.due) })
	} else {
		slices.Reverse(candidates)
	}
	if s.is("lanes-shuffled") {
		slices.Reverse(candidates)
	}
	taken := map[string]bool{} // lanes that something stands in the way of, or that another lease has
	for _, row := range s.rows {
		switch {
		case row.token == "", s.is("lanes-shared"),
			s.is("leased-suspects-are-passed") && row.Unknowns > 0,
			s.is("ended-lease-frees-its-lane") && !now.Before(row.leaseEnds):
		default:
			taken[row.OrderKey] = true
		}
	}
	var leased []outbox.Row
	for _, row := range candidates {
		suspect := row.Unknowns > 0
		switch {
		case row.state == outbox.Dead && s.is("dead-rows-come-again"):
		case row.state != "" && (row.state != outbox.Published || !s.is("published-comes-again")):
			continue
		case now.Before(row.due), row.token != "" && !s.is("leases-are-shared"):
			continue
		case suspect != r.Suspects && !s.is("suspects-among-the-others"):
			continue
		case s.is("by-position") && row.Number < s.read:
			continue
		case len(leased) == r.Limit && !s.is("limit-ignored"):
			continue
		case row.OrderKey != "" && (taken[row.OrderKey] || s.blocked(row, r.Suspects, now)):
			continue
		}
		row.token, row.leaseEnds = r.Token, now.Add(r.Lease)
		if s.is("lease-ends-early") {
			row.leaseEnds = now.Add(r.Lease / 2)
		}
		s.read = max(s.read, row.Number)
		leased = append(leased, row.Row)
	}
	return leased, nil
}

// blocked tells whether an earlier row of the lane stands in the way.
func (s *toy) blocked(row *toyRow, suspects bool, now time.Time) bool {
	for _, o := range s.rows {
		if o.OrderKey != row.OrderKey || o.Number >= row.Number {
			continue
		}
		switch {
		case suspects && s.is("suspects-pass-the-dead") && o.state == outbox.Dead,
			suspects && s.is("suspects-pass-each-other") && o.state == "",
			s.is("delayed-rows-are-passed") && now.Before(o.first),
			s.is("leased-suspects-are-passed") && o.Unknowns > 0 && o.token != "":
		case o.state == outbox.Dead && !s.is("dead-rows-block-nobody"):
			return true
		case o.state != "":
		case now.Before(o.due) && !s.is("refused-rows-are-passed"):
			return true
		case o.Unknowns > 0 && !suspects && !s.is("suspects-are-passed"):
			return true
		}
	}
	return s.is("a-lane-stands-still") && slices.ContainsFunc(s.rows, func(o *toyRow) bool {
		return o.OrderKey == row.OrderKey && o.state == outbox.Published
	})
}

func (s *toy) Settle(ctx context.Context, token string, results []outbox.Result) error {
	s.dawdle()
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := []outbox.State{outbox.Published, outbox.Removed, outbox.Failed, outbox.Unknown, outbox.Dead}
	for _, r := range results {
		if !slices.Contains(known, r.State) && !s.is("unknown-state-is-skipped") {
			return &dedupstore.InvalidError{Package: "outbox", Field: "Result.State", Problem: fmt.Sprintf("is %q", r.State)}
		}
	}
	now := time.Now()
	for _, row := range slices.Clone(s.rows) {
		i := slices.IndexFunc(results, func(r outbox.Result) bool { return r.Number == row.Number })
		stranger := row.token != token || s.is("ended-lease-is-lost") && !now.Before(row.leaseEnds)
		if stranger && (!s.is("token-ignored") || i < 0) {
			continue
		}
		row.token = ""
		if i < 0 {
			row.due = row.first
			if s.is("given-back-counts") {
				row.Unknowns++
			}
			if s.is("given-back-waits") {
				row.due = now.Add(time.Minute)
			}
			continue
		}
		s.apply(row, results[i], now)
	}
	return nil
}

// dawdle is a machine that is busy with something else.
func (s *toy) dawdle() {
	if s.is("slow") {
		<-time.After(2 * lasting)
	}
}

func (s *toy) apply(row *toyRow, r outbox.Result, now time.Time) {
	row.due, row.text = now, r.Error
	if !s.is("delay-of-a-retry-ignored") {
		row.due = now.Add(r.Delay)
		if s.is("delay-ends-early") {
			row.due = now.Add(r.Delay / 2)
		}
	}
	switch r.State {
	case outbox.Published:
		row.state, row.published = r.State, now
	case outbox.Removed:
		s.removed[row.Message.ID] = true
		s.rows = slices.DeleteFunc(s.rows, func(o *toyRow) bool { return o == row })
		if s.is("removed-is-remembered") {
			row.state = outbox.Published
			s.rows = append(s.rows, row)
		}
	case outbox.Failed:
		row.Failures++
	case outbox.Unknown:
		row.Unknowns++
		if s.is("unknown-is-a-failure") {
			row.Unknowns, row.Failures = 0, row.Failures+1
		}
	case outbox.Dead:
		row.Failures++
		row.state, row.died = r.State, now
	}
}

func (s *toy) Clean(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.rows = slices.DeleteFunc(s.rows, func(r *toyRow) bool {
		old := r.state == outbox.Published && time.Since(r.published) >= age
		if s.is("clean-takes-all") {
			old = age == 0
		}
		if !old || n == limit && !s.is("clean-is-unbounded") {
			return false
		}
		n++
		return true
	})
	return n, nil
}

func (s *toy) Stats(context.Context) (outbox.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stats outbox.Stats
	for _, r := range s.rows {
		switch {
		case r.state == outbox.Dead:
			stats.Dead++
		case r.state == "" && (r.token == "" || !s.is("leased-rows-are-not-counted")):
			if s.is("delayed-rows-are-not-counted") && time.Now().Before(r.due) {
				continue
			}
			stats.Pending++
			due := r.first
			if s.is("delayed-rows-are-late") {
				due = r.written
			}
			stats.Oldest = max(stats.Oldest, time.Since(due))
		}
	}
	return stats, nil
}

// stateOf is what an operator is told of a row.
func (s *toy) stateOf(r *toyRow, now time.Time) outbox.State {
	switch {
	case r.state != "":
		return r.state
	case r.token != "" && now.Before(r.leaseEnds) && !s.is("leased-rows-look-free"):
		return outbox.Leased
	case now.Before(r.due) && !s.is("delayed-rows-look-due"):
		return outbox.Delayed
	}
	return outbox.Pending
}

func (s *toy) List(_ context.Context, f outbox.Filter, after string) (page outbox.Page, err error) {
	at := 0
	if after != "" {
		at, err = strconv.Atoi(after)
	}
	if invalid := f.Validate(); invalid != nil && !s.is("filter-is-not-checked") {
		err = invalid
	}
	if err != nil {
		return outbox.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, now := slices.Clone(s.rows), time.Now()
	slices.SortStableFunc(rows, func(a, b *toyRow) int { return a.died.Compare(b.died) })
	to := min(at+200, len(rows))
	if s.is("list-is-one-page") {
		to = len(rows)
	}
	page.Looked = to - at
	if to < len(rows) {
		page.Next = strconv.Itoa(to)
		if s.is("pages-lose-a-row") {
			page.Next = strconv.Itoa(to + 1)
		}
	}
	for _, r := range rows[min(at, to):to] {
		row := outbox.RowInfo{ID: r.Message.ID, Topic: r.Message.Topic, Key: r.Message.Key, State: s.stateOf(r, now), Written: r.written, Failures: r.Failures, Unknowns: r.Unknowns, Error: r.text}
		switch row.State {
		case outbox.Dead:
			row.Ended = r.died
		case outbox.Published:
			row.Ended = r.published
		case outbox.Pending, outbox.Delayed:
			row.Due = r.due
		}
		if f.Header || s.is("headers-unasked") {
			row.Header = r.Message.Header
		}
		if s.is("dead-without-a-reason") {
			row.Error = ""
		}
		if (f.Wants(row.State) || s.is("lists-all-states")) && (f.Topic == "" || f.Topic == row.Topic || s.is("lists-all-topics")) &&
			(f.ID == "" || f.ID == row.ID || s.is("lists-all-IDs")) &&
			(!row.Written.Before(f.Since) && (f.Before.IsZero() || row.Written.Before(f.Before)) || s.is("lists-all-times")) {
			page.Rows = append(page.Rows, row)
		}
	}
	return page, nil
}

func (s *toy) Count(ctx context.Context, f outbox.Filter, after string) (outbox.Count, error) {
	page, err := s.List(ctx, f, after)
	count := outbox.Count{Next: page.Next, Looked: page.Looked}
	for _, r := range page.Rows {
		t := outbox.Tally{Topic: r.Topic, State: r.State, Rows: 1}
		if s.is("count-mixes-topics") {
			t.Topic = page.Rows[0].Topic
		}
		if r.State != outbox.Dead && r.State != outbox.Published {
			t.Oldest = max(0, time.Since(r.Due))
		}
		count.Tallies = append(count.Tallies, t)
	}
	return count, err
}

// shown reports whether a row is one of what was shown.
func (s *toy) shown(r *toyRow, dead []outbox.RowInfo) bool {
	return slices.ContainsFunc(dead, func(d outbox.RowInfo) bool {
		return d.ID == r.Message.ID && (d.Topic == "" || d.Topic == r.Message.Topic || s.is("takes-other-topics")) &&
			(d.Ended.IsZero() || d.Ended.Equal(r.died) || s.is("takes-what-died-again"))
	})
}

func (s *toy) Requeue(_ context.Context, dead ...outbox.RowInfo) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.state == outbox.Dead && s.shown(r, dead) {
			n++
			r.state, r.due = "", time.Now()
			if !s.is("requeued-keeps-its-count") {
				r.Failures, r.Unknowns = 0, 0
			}
		}
	}
	return n, nil
}

func (s *toy) Discard(_ context.Context, dead ...outbox.RowInfo) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = slices.DeleteFunc(s.rows, func(r *toyRow) bool {
		gone := s.shown(r, dead) && (r.state == outbox.Dead || s.is("discards-the-living"))
		if gone {
			n++
		}
		return gone
	})
	return n, nil
}

func (s *toy) Replay(_ context.Context, q outbox.ReplayRequest) (n int, err error) {
	if err := q.Validate(); err != nil && !s.is("replay-is-not-checked") {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		switch {
		case n == q.Limit, r.state != outbox.Published && !s.is("replays-the-dead"),
			!r.published.Before(q.Before) && !s.is("replay-without-end"),
			r.published.Before(q.Since) && !s.is("replay-without-beginning"),
			q.Topic != "" && r.Message.Topic != q.Topic && !s.is("replay-of-all-topics"),
			len(q.IDs) > 0 && !slices.Contains(q.IDs, r.Message.ID),
			!has(r.Message.Header, q.Header) && !s.is("replay-of-all-headers"):
			continue
		}
		n++
		r.state, r.due, r.Failures, r.Unknowns = "", time.Now(), 0, 0
		if s.is("replay-is-no-copy") {
			continue
		}
		h := maps.Clone(r.Message.Header)
		generation, _ := strconv.Atoi(h.Get(producer.HeaderGeneration))
		h[producer.HeaderPurpose], h[producer.HeaderGeneration] = producer.PurposeReplay, strconv.Itoa(generation+1)
		r.Message.Header = h
	}
	return n, nil
}

// has reports whether a header has all that is wanted.
func has(h, wanted producer.Header) bool {
	for name, value := range wanted {
		if h.Get(name) != value {
			return false
		}
	}
	return true
}

// A farToy is a toy behind a link. Each operation has one answer.
type farToy struct {
	*toy
	gone bool // the next answer that does not arrive is one to a host that has vanished

	link   sync.Mutex
	left   int // answers until one does not arrive; 0: all arrive
	silent chan struct{}

	line chan struct{} // for a broken toy, which takes one answer after the other
}

func (f *farToy) cut(n int, gone bool) <-chan struct{} {
	f.link.Lock()
	defer f.link.Unlock()
	f.left, f.gone, f.silent = n, gone, make(chan struct{})
	return f.silent
}

func (f *farToy) Silence(n int) <-chan struct{} { return f.cut(n, false) }
func (f *farToy) Vanish(n int) <-chan struct{}  { return f.cut(n, true) }

// answer waits for an answer that does not arrive.
func (f *farToy) answer(ctx context.Context) error {
	if f.is("late-answer-blocks-all") {
		select {
		case f.line <- struct{}{}:
			defer func() { <-f.line }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.link.Lock()
	f.left--
	silent, late := f.silent, f.left == 0
	f.link.Unlock()
	if !late {
		return nil
	}
	close(silent)
	if f.is("late-answer-is-waited-for") || f.is("late-answer-blocks-all") {
		<-time.After(waitLimit * 3 / 2)
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *farToy) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	if f.gone && f.is("vanished-host-keeps-its-rows") {
		r.Lease = long
	}
	rows, err := f.toy.Lease(ctx, r)
	return rows, errors.Join(err, f.answer(ctx))
}

func (f *farToy) Settle(ctx context.Context, token string, results []outbox.Result) error {
	return errors.Join(f.toy.Settle(ctx, token, results), f.answer(ctx))
}

func (f *farToy) Clean(ctx context.Context, age time.Duration, limit int) (int, error) {
	n, err := f.toy.Clean(ctx, age, limit)
	return n, errors.Join(err, f.answer(ctx))
}

func (f *farToy) List(ctx context.Context, filter outbox.Filter, after string) (outbox.Page, error) {
	page, err := f.toy.List(ctx, filter, after)
	return page, errors.Join(err, f.answer(ctx))
}

func (f *farToy) Requeue(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	n, err := f.toy.Requeue(ctx, dead...)
	return n, errors.Join(err, f.answer(ctx))
}

func (f *farToy) Discard(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	n, err := f.toy.Discard(ctx, dead...)
	return n, errors.Join(err, f.answer(ctx))
}

func (f *farToy) Replay(ctx context.Context, r outbox.ReplayRequest) (int, error) {
	n, err := f.toy.Replay(ctx, r)
	return n, errors.Join(err, f.answer(ctx))
}
