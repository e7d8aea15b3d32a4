package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A settling is a settlement or an extension as the functions take it.
type settling struct {
	id                      []byte
	owner                   string
	fence                   int64
	step                    string // done, publishing, release, published, extend; start: extend what has started
	delay                   *int64 // µs: until the lease of what follows ends, or a retry is due; nil: neither
	retention               int64  // µs
	took                    *int64 // ms
	uncounted               bool
	kind, reason            string
	exhausted, truncated    bool
	result, stubs, contents []byte

	verdict string
	err     error
}

// The verdicts of the functions, beside contended. The others are successes.
const (
	lost    = "lost"
	settled = "settled" // there is nothing to extend, or to publish, as this owner has finished
)

// newExtending is an extension.
func newExtending(x dedupstore.Extension) (*settling, error) {
	if err := x.Validate(); err != nil {
		return nil, err
	}
	s := &settling{step: "extend", delay: micros(x.Lease), retention: sqlstore.Micros(x.Claim.Retention)}
	if x.Started {
		s.step = "start"
	}
	return of(x.Claim, s)
}

// of makes a settling one of a claim.
func of(c dedupstore.Claim, s *settling) (*settling, error) {
	if c.Fence > math.MaxInt64 {
		return nil, dedupstore.ErrClaimLost // no store of this kind has granted it
	}
	s.id, s.owner, s.fence = idOf(c.Key.String()), c.Owner, int64(c.Fence)
	return s, nil
}

func (s *settling) extends() bool { return s.step == "extend" || s.step == "start" }

// newSettling is a settlement of a claim.
func newSettling(c dedupstore.Claim, settlement dedupstore.Settlement) (*settling, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return nil, err
	}
	s := new(settling)
	switch settlement := settlement.(type) {
	case dedupstore.Finish:
		o := settlement.Outcome
		s.step, s.retention, s.took = "done", sqlstore.Micros(settlement.Retention), millis(settlement.Took)
		s.kind, s.exhausted, s.truncated = string(o.Kind), o.Exhausted, o.Truncated
		s.reason, s.stubs = encodeText(o.Reason), sqlstore.EncodeStubs(o.Produced)
		if len(o.Result) > 0 {
			s.result = o.Result
		}
		if settlement.Publishes() {
			s.step, s.delay, s.contents = "publishing", micros(c.Lease), sqlstore.EncodeContents(o.Produced)
		}
	case dedupstore.Release:
		s.step, s.retention, s.delay = "release", sqlstore.Micros(c.Retention), micros(settlement.Delay)
		s.uncounted, s.reason = settlement.Uncounted, encodeText(settlement.Reason)
		s.took = millis(settlement.Took)
	case dedupstore.Published:
		s.step, s.retention = "published", sqlstore.Micros(settlement.Retention)
		s.stubs = sqlstore.EncodeStubs(settlement.Produced)
	}
	return of(c, s)
}

func micros(d time.Duration) *int64 { return new(sqlstore.Micros(d)) }

// millis is how long a run took; nil if that is not known.
func millis(took time.Duration) *int64 {
	if took <= 0 {
		return nil
	}
	return new(took.Milliseconds())
}

// plain reports whether it is what nearly all are: a success that produced nothing.
func (s *settling) plain() bool {
	return s.step == "done" && s.kind == string(dedupstore.Succeeded) && !s.exhausted && !s.truncated &&
		s.reason == "" && s.stubs == nil
}

// foreseen reports whether the claim's date of cleaning fits the outcome. It must not be much too late, and it must be
// late enough. After a run of over a sixteenth of the window it may be early: cleaning then looks and postpones it.
func (s *settling) foreseen(c dedupstore.Claim) bool {
	life := sqlstore.Micros(c.Lease) + sqlstore.Micros(c.Retention)
	return sqlstore.Micros(c.Retention) >= s.retention && life+life/16 <= 3*s.retention
}

// args are the arguments of the function that finishes within a transaction.
func (s *settling) args(token string) []any {
	return []any{
		token, s.id, s.owner, s.fence, s.step, s.delay, s.retention, s.kind, s.exhausted, s.truncated, s.reason,
		s.result, s.stubs, s.contents, s.took,
	}
}

// Extend implements [dedupstore.Store].
func (f *form) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return f.settle(ctx, "extend", len(extensions), func(i int) (*settling, error) {
		return newExtending(extensions[i])
	})
}

// Settle implements [dedupstore.Store].
func (f *form) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return f.settle(ctx, "settle", len(settlings), func(i int) (*settling, error) {
		f.store.granted.take(settlings[i].Claim.Owner)
		return newSettling(settlings[i].Claim, settlings[i].Settlement)
	})
}

// joinWait is how long an extension waits beside a transaction of a handler that has called Join. A takeover, if
// such a transaction was rolled back before, takes less.
const joinWait = 50 * time.Millisecond

// contendedFor is how long operations wait for the records that others have locked. Other operations, which came with
// them, wait as long for their answers.
const contendedFor = 200 * time.Millisecond

// errContended says that another transaction has had a record locked for contendedFor.
var errContended = errors.New("another transaction has the record locked")

// settle makes n operations. It asks again for records that somebody had locked, for contendedFor. Only a transaction
// that settles this very claim locks a record for long. If it is a handler's that has called Join, nobody takes the key
// over meanwhile, and extensions need not wait.
func (f *form) settle(ctx context.Context, what string, n int, operation func(i int) (*settling, error)) []error {
	errs, all := make([]error, n), make([]*settling, n)
	var rest []*settling
	for i := range n {
		if all[i], errs[i] = operation(i); errs[i] == nil {
			rest = append(rest, all[i])
		}
	}
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for start := time.Now(); ; {
		together(ctx, rest, f.execSettles)
		rest = slices.DeleteFunc(rest, func(s *settling) bool {
			return s.err != nil || s.verdict != contended ||
				s.extends() && time.Since(start) > joinWait && f.store.joined.has(s.owner)
		})
		if len(rest) == 0 || time.Since(start) > contendedFor || !pace.Sleep(ctx, pauses.Next()) {
			break
		}
	}
	for _, s := range rest {
		s.err = cmp.Or(ctx.Err(), errContended)
	}
	for i, s := range all {
		if s != nil {
			errs[i] = f.judge(what, s)
		}
	}
	return errs
}

// judge says what became of an operation.
func (f *form) judge(what string, s *settling) error {
	if s.err != nil {
		return f.store.failed(what, s.err)
	}
	joined := f.store.joined.has(s.owner)
	if !s.extends() {
		f.store.joined.take(s.owner)
	}
	switch {
	case s.verdict == lost, s.verdict == settled && s.extends() && !joined:
		return dedupstore.ErrClaimLost
	case s.verdict == settled && joined && !s.extends():
		return sqlstore.ErrJoinedOutputs
	}
	return nil
}

// execSettles settles and extends by one statement. Its commit waits for the disk: messages are acknowledged on the
// strength of it.
func (f *form) execSettles(ctx context.Context, settlings []*settling) error {
	args := settleArgs(settlings)
	return f.store.again(ctx, func() error {
		rows, err := f.store.pool.Query(ctx, f.store.sql.settle, args...)
		if err != nil {
			return err
		}
		var n int64
		var verdict string
		got := 0
		_, err = pgx.ForEachRow(rows, []any{&n, &verdict}, func() error {
			settlings[n-1].verdict = verdict
			got++
			return nil
		})
		if err == nil && got != len(settlings) {
			err = fmt.Errorf("%d settlements got %d answers", len(settlings), got)
		}
		return err
	})
}

func settleArgs(settlings []*settling) []any {
	n := len(settlings)
	ids, owners, fences, steps := make([][]byte, n), make([]string, n), make([]int64, n), make([]string, n)
	delays, retentions, tooks, uncounted := make([]*int64, n), make([]int64, n), make([]*int64, n), make([]bool, n)
	kinds, exhausted, truncated, reasons := make([]string, n), make([]bool, n), make([]bool, n), make([]string, n)
	results, stubs, contents := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, s := range settlings {
		ids[i], owners[i], fences[i], steps[i] = s.id, s.owner, s.fence, s.step
		delays[i], retentions[i], tooks[i], uncounted[i] = s.delay, s.retention, s.took, s.uncounted
		kinds[i], exhausted[i], truncated[i], reasons[i] = s.kind, s.exhausted, s.truncated, s.reason
		results[i], stubs[i], contents[i] = s.result, s.stubs, s.contents
	}
	return []any{ids, owners, fences, steps, delays, retentions, tooks, uncounted, kinds, exhausted, truncated,
		reasons, results, stubs, contents}
}

// PostgreSQL's texts cannot have a zero byte, which a reason may have.
var (
	textEncoder = strings.NewReplacer("\\", `\\`, "\x00", `\0`)
	textDecoder = strings.NewReplacer(`\\`, "\\", `\0`, "\x00")
)

func encodeText(s string) string { return textEncoder.Replace(s) }
func decodeText(s string) string { return textDecoder.Replace(s) }
