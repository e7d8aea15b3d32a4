package pgstore

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A settling is a settlement as the functions take it.
type settling struct {
	id                      []byte
	owner                   string
	fence                   int64
	step                    string // done, publishing, release, published
	lease, retention, delay int64  // µs; lease: of the publish step that follows
	uncounted               bool
	kind, reason            string
	exhausted, truncated    bool
	result, stubs, contents []byte
}

// newSettling is a settlement of a claim whose record has the id.
func newSettling(id []byte, c dedupstore.Claim, settlement dedupstore.Settlement) (*settling, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return nil, err
	}
	if c.Fence > math.MaxInt64 {
		return nil, dedupstore.ErrClaimLost // no store of this kind has granted it
	}
	s := &settling{id: id, owner: c.Owner, fence: int64(c.Fence)}
	switch settlement := settlement.(type) {
	case dedupstore.Finish:
		o := settlement.Outcome
		s.step, s.retention = "done", sqlstore.Micros(settlement.Retention)
		s.kind, s.exhausted, s.truncated = string(o.Kind), o.Exhausted, o.Truncated
		s.reason, s.stubs = encodeText(o.Reason), sqlstore.EncodeStubs(o.Produced)
		if len(o.Result) > 0 {
			s.result = o.Result
		}
		if len(o.Produced) > 0 && !settlement.Published {
			s.step, s.lease, s.contents = "publishing", sqlstore.Micros(c.Lease), sqlstore.EncodeContents(o.Produced)
		}
	case dedupstore.Release:
		s.step, s.retention, s.delay = "release", sqlstore.Micros(c.Retention), sqlstore.Micros(settlement.Delay)
		s.uncounted, s.reason = settlement.Uncounted, encodeText(settlement.Reason)
	case dedupstore.Published:
		s.step, s.retention = "published", sqlstore.Micros(settlement.Retention)
		s.stubs = sqlstore.EncodeStubs(settlement.Produced)
	}
	return s, nil
}

// large reports whether it takes long to send and to write.
func (s *settling) large() bool { return len(s.result)+len(s.stubs)+len(s.contents) > maxShared }

// plain reports whether it is what nearly all are: a success that produced nothing.
func (s *settling) plain() bool {
	return s.step == "done" && s.kind == string(dedupstore.Succeeded) && !s.exhausted && !s.truncated &&
		s.reason == "" && s.stubs == nil
}

// foreseen reports whether the date of cleaning that the claim has set does for the outcome: it is late enough, unless
// the run took longer than a sixteenth of the window, after which cleaning has a look and postpones it; and it is not
// much too late.
func (s *settling) foreseen(c dedupstore.Claim) bool {
	life := sqlstore.Micros(c.Lease) + sqlstore.Micros(c.Retention)
	return sqlstore.Micros(c.Retention) >= s.retention && life+life/16 <= 3*s.retention
}

// args are the arguments of the function that finishes within a transaction.
func (s *settling) args(token string) []any {
	return []any{
		token, s.id, s.owner, s.fence, s.step, s.lease, s.retention, s.kind, s.exhausted, s.truncated, s.reason,
		s.result, s.stubs, s.contents,
	}
}

// execSettles settles by one statement, and returns verdicts. Its commit waits for the disk: messages are acknowledged
// on the strength of it.
func (f *form) execSettles(ctx context.Context, settlings []*settling) (verdicts []string, err error) {
	verdicts, err = f.makeSettles(ctx, settlings)
	// the database has another encoding than UTF-8
	if code := codeOf(err); code == codeNoSuchText || code == codeNoTranslation {
		for _, s := range settlings {
			s.reason = errtext.ASCII(s.reason)
		}
		verdicts, err = f.makeSettles(ctx, settlings)
	}
	return verdicts, err
}

func (f *form) makeSettles(ctx context.Context, settlings []*settling) (verdicts []string, err error) {
	args := append(settleArgs(settlings), true)
	err = f.store.again(ctx, func() error {
		verdicts = make([]string, len(settlings))
		rows, err := f.store.pool.Query(ctx, f.store.sql.settle, args...)
		if err != nil {
			return err
		}
		var n int64
		var verdict string
		got := 0
		_, err = pgx.ForEachRow(rows, []any{&n, &verdict}, func() error {
			verdicts[n-1] = verdict
			got++
			return nil
		})
		if err == nil && got != len(settlings) {
			err = fmt.Errorf("%d settlements got %d answers", len(settlings), got)
		}
		return err
	})
	return verdicts, err
}

func settleArgs(settlings []*settling) []any {
	n := len(settlings)
	ids, owners, fences, steps := make([][]byte, n), make([]string, n), make([]int64, n), make([]string, n)
	leases, retentions, delays, uncounted := make([]int64, n), make([]int64, n), make([]int64, n), make([]bool, n)
	kinds, exhausted, truncated, reasons := make([]string, n), make([]bool, n), make([]bool, n), make([]string, n)
	results, stubs, contents := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, s := range settlings {
		ids[i], owners[i], fences[i], steps[i] = s.id, s.owner, s.fence, s.step
		leases[i], retentions[i], delays[i], uncounted[i] = s.lease, s.retention, s.delay, s.uncounted
		kinds[i], exhausted[i], truncated[i], reasons[i] = s.kind, s.exhausted, s.truncated, s.reason
		results[i], stubs[i], contents[i] = s.result, s.stubs, s.contents
	}
	return []any{ids, owners, fences, steps, leases, retentions, delays, uncounted, kinds, exhausted, truncated,
		reasons, results, stubs, contents}
}

// PostgreSQL's texts cannot have a zero byte, which a reason may have.
var (
	textEncoder = strings.NewReplacer("\\", `\\`, "\x00", `\0`)
	textDecoder = strings.NewReplacer(`\\`, "\\", `\0`, "\x00")
)

func encodeText(s string) string { return textEncoder.Replace(s) }
func decodeText(s string) string { return textDecoder.Replace(s) }
