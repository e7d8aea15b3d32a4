package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A toyInbox is a database in memory with the records of a toy and a table of effects, that can break one rule. It has
// a few connections, as pools have.
type toyInbox struct {
	*toy
	broken string // the rule, or ""
	conns  chan struct{}
	locked atomic.Int32 // records that a commit holds
	hidden sync.Map     // keys whose records cannot be read
	below  sync.Map     // claims, by keys, under their outcomes
	making sync.Map     // keys of first runs, and when their leases end

	database sync.Mutex // what is committed is seen at once
	table    map[string]int
}

func newToyInbox(broken string) *toyInbox {
	s := &toyInbox{toy: newToy(""), broken: broken, conns: make(chan struct{}, 10), table: map[string]int{}}
	switch broken {
	case "fence-ignored":
		s.toy.broken = "settle-ignores-fence"
	case "publisher-may-finish":
		s.toy.broken = broken
	}
	return s
}

func (s *toyInbox) breaks(rule string) bool { return s.broken == rule }

type toyTx struct {
	mu                 sync.Mutex
	effects            map[string]int
	over, aborted      bool
	conflict           error
	loseReply, loseAll bool
}

type toyTxKey struct{}

func txOf(ctx context.Context) *toyTx { return ctx.Value(toyTxKey{}).(*toyTx) }

var (
	errToyOver    = errors.New("toy: the transaction is over")
	errToyAborted = errors.New("toy: the transaction is aborted")
	errToyRefused = errors.New("toy: could not serialize access")
	errToyReply   = errors.New("toy: connection lost")
)

func (s *toyInbox) effect(ctx context.Context, name string) error {
	tx := txOf(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch {
	case tx.over && s.breaks("writes-after-the-end-are-committed"):
		s.database.Lock()
		defer s.database.Unlock()
		s.table[name]++
		return nil
	case tx.over:
		return errToyOver
	case tx.aborted:
		return errToyAborted
	}
	tx.effects[name]++
	return nil
}

func (s *toyInbox) effects(_ context.Context, name string) (int, error) {
	s.database.Lock()
	defer s.database.Unlock()
	return s.table[name], nil
}

func (s *toyInbox) conflict(ctx context.Context) error {
	txOf(ctx).conflict = errToyRefused
	return errToyRefused
}

func (s *toyInbox) lose(ctx context.Context, applied bool) {
	txOf(ctx).loseReply, txOf(ctx).loseAll = applied, !applied
}

func (s *toyInbox) hide(c dedupstore.Claim, hidden bool) {
	if hidden {
		s.hidden.Store(c.Key, true)
	} else {
		s.hidden.Delete(c.Key)
	}
}

func (s *toyInbox) subject() InboxSubject {
	return InboxSubject{
		Inbox: s, Effect: s.effect, Effects: s.effects, Conflict: s.conflict, LoseCommit: s.lose,
		Abort: func(ctx context.Context) { txOf(ctx).aborted = true },
		InUse: func() int { return len(s.conns) }, HideRecord: s.hide, Vanish: s.vanish, VanishWithin: time.Minute,
	}
}

func (s *toyInbox) vanish(ctx context.Context) error {
	txOf(ctx).loseAll = true
	ends := time.After(time.Second)
	if s.breaks("vanished-hosts-keep-their-locks") {
		ends = nil
	}
	select {
	case <-ends:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *toyInbox) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *toyInbox) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if below, ok := s.below.Load(r.Key); ok && s.load(r.Key, time.Now()) == nil {
		claim := below.(toyRecord)
		s.records[s.name(r.Key)] = &claim
	}
	for s.locked.Load() > 0 || s.breaks("twin-waits-for-the-transaction") && len(s.conns) > 0 {
		select {
		case <-ctx.Done():
			return dedupstore.Answer{}, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	if ends, ok := s.making.Load(r.Key); ok && !s.breaks("first-holds-no-lock") &&
		!(s.breaks("first-ends-with-its-lease") && time.Now().After(ends.(time.Time))) {
		return dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: r.Lease}, nil
	}
	s.database.Lock()
	defer s.database.Unlock()
	return dedupstore.ClaimOne(ctx, s.toy, r)
}

// TakesFirst implements [dedupstore.Transactor].
func (*toyInbox) TakesFirst() bool { return true }

// InTx keeps the records of first runs where others do not look until it is over.
func (s *toyInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, w dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	answers := make([]dedupstore.Answer, len(runs))
	var claims, made []dedupstore.Claim
	for i, r := range runs {
		if problem := s.invalid(r); problem != nil {
			return nil, problem
		}
		if r.First == nil {
			claims = append(claims, r.Claim)
			continue
		}
		var free bool
		var err error
		answers[i], free, err = s.makes(ctx, *r.First, claims)
		if free {
			defer s.making.Delete(r.First.Key)
		}
		if err != nil {
			return nil, err
		}
		if c := answers[i].Claim; answers[i].Status == "" {
			claims = append(claims, c)
			if c.Fence > 0 {
				made = append(made, c)
			}
		}
	}
	switch {
	case len(runs) == 0 && !s.breaks("many-of-nobody"):
		return nil, dedupstore.ValidateRuns(runs)
	case len(claims) == 0:
		return answers, nil
	}
	var unseen *toyRecord
	if s.breaks("first-holds-no-lock") && len(made) == 1 {
		unseen = s.forget(made[0].Key)
	}
	err := s.inTx(ctx, claims, func(ctx context.Context) ([]dedupstore.Settlement, error) {
		reported := slices.Clone(claims)
		if s.breaks("first-tells-another-fence") && len(made) > 0 {
			reported[0].Fence++
		}
		settlements, err := w(ctx, reported)
		if unseen != nil {
			s.mu.Lock()
			s.records[s.name(made[0].Key)] = unseen
			s.mu.Unlock()
		}
		if s.breaks("first-window-is-the-claim's") && len(made) > 0 && err == nil {
			f := settlements[0].(dedupstore.Finish)
			f.Retention = runs[0].First.Retention
			settlements[0] = f
		}
		return settlements, err
	})
	for _, c := range made {
		if err != nil && !s.breaks("first-error-leaves-a-record") {
			s.forget(c.Key)
		}
	}
	return answers, err
}

func (s *toyInbox) invalid(r dedupstore.TxRun) error {
	err := dedupstore.ValidateRuns([]dedupstore.TxRun{r})
	if s.breaks("claims-not-validated") && r.First == nil ||
		s.breaks("first-is-not-validated") && r.First != nil && r.First.Validate() == nil {
		return nil
	}
	return err
}

// makes makes the record of a first run, unless there is one; then it has an answer with a status. Free says that the
// key has to be freed.
func (s *toyInbox) makes(
	ctx context.Context, r dedupstore.Request, before []dedupstore.Claim,
) (a dedupstore.Answer, free bool, err error) {
	_, taken := s.making.LoadOrStore(r.Key, time.Now().Add(r.Lease))
	if taken && !s.breaks("first-holds-no-lock") {
		mine := slices.ContainsFunc(before, func(c dedupstore.Claim) bool { return c.Key == r.Key })
		if s.breaks("many-run-beside-others") && !mine || s.breaks("many-run-copies") && mine {
			return dedupstore.Answer{Claim: dedupstore.Claim{Key: r.Key}}, false, nil
		}
		return dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: r.Lease}, false, nil
	}
	a, err = dedupstore.ClaimOne(ctx, s.toy, r)
	beside := s.breaks("first-runs-beside-records") && a.Status != dedupstore.Done
	if a.Status == dedupstore.AcquiredRun && a.Found == dedupstore.Absent || beside ||
		s.breaks("many-run-what-is-known") {
		a.Status = ""
	}
	return a, true, err
}

// forget removes a record.
func (s *toyInbox) forget(key dedupstore.Key) *toyRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.records[s.name(key)]
	delete(s.records, s.name(key))
	return rec
}

func (s *toyInbox) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (s *toyInbox) extendOne(ctx context.Context, x dedupstore.Extension) error {
	if s.breaks("heartbeat-waits-for-the-transaction") && len(s.conns) > 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	s.database.Lock()
	defer s.database.Unlock()
	return dedupstore.ExtendOne(ctx, s.toy, x)
}

// A toyWork is the work of runs that have their claims.
type toyWork = func(context.Context) ([]dedupstore.Settlement, error)

func (s *toyInbox) inTx(ctx context.Context, claims []dedupstore.Claim, work toyWork) error {
	if err := ctx.Err(); err != nil && !s.breaks("begins-after-the-end-of-the-context") {
		return err
	}
	if s.allFinished(claims) && !s.breaks("finished-work-is-repeated") {
		return nil
	}
	for tries := 0; ; tries++ {
		tx := &toyTx{effects: map[string]int{}}
		err := s.try(ctx, claims, work, tx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errToyReply) && s.breaks("lost-answer-is-a-failure"):
			return err
		case errors.Is(err, errToyReply) && s.breaks("lost-commit-is-a-success"):
			return nil
		case errors.Is(err, errToyReply):
			return s.lookUp(claims[0], err)
		case s.leaks(tx, err):
			select {
			case s.conns <- struct{}{}:
			default: // there is none left
			}
			return err
		case tx.conflict == nil:
			return err
		case s.breaks("conflicts-are-failures"):
			return err
		case tries >= 10 && !s.breaks("conflicts-never-end"):
			return &dedupstore.ConflictError{Err: tx.conflict}
		}
	}
}

// leaks tells whether to keep a connection for good.
func (s *toyInbox) leaks(tx *toyTx, err error) bool {
	lost := errors.Is(err, dedupstore.ErrClaimLost)
	return s.breaks("lost-claim-leaks-the-connection") && lost ||
		s.breaks("error-leaks-the-connection") && !lost && tx.conflict == nil
}

// lookUp says what has become of a commit without an answer, as soon as the record can be read.
func (s *toyInbox) lookUp(c dedupstore.Claim, lost error) error {
	for end := time.Now().Add(c.Lease); ; <-time.After(time.Millisecond) {
		_, hidden := s.hidden.Load(c.Key)
		switch {
		case !hidden && s.finished(c), hidden && s.breaks("what-cannot-be-known-is-a-success"):
			return nil
		case !hidden && s.breaks("lookup-ignores-the-owner") && s.anybodys(c):
			return nil
		case !hidden, s.breaks("what-cannot-be-known-is-a-failure"):
			return lost
		case !time.Now().Before(end):
			return &dedupstore.UndecidedError{Err: lost}
		}
	}
}

// anybodys tells whether somebody has stored an outcome.
func (s *toyInbox) anybodys(c dedupstore.Claim) bool {
	s.database.Lock()
	defer s.database.Unlock()
	rec := s.load(c.Key, time.Now())
	return rec != nil && (rec.state == dedupstore.Finished || rec.state == dedupstore.Publishing)
}

func (s *toyInbox) allFinished(claims []dedupstore.Claim) bool {
	return !slices.ContainsFunc(claims, func(c dedupstore.Claim) bool { return !s.finished(c) })
}

// finished tells whether this owner has stored its outcome.
func (s *toyInbox) finished(c dedupstore.Claim) bool {
	s.database.Lock()
	defer s.database.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.load(c.Key, time.Now())
	return rec != nil && rec.owner == c.Owner && rec.fence == c.Fence && slices.Contains(rec.settlers, c.Owner) &&
		(rec.state == dedupstore.Finished || rec.state == dedupstore.Publishing)
}

func (s *toyInbox) try(ctx context.Context, claims []dedupstore.Claim, w toyWork, tx *toyTx) (err error) {
	if s.breaks("one-transaction-at-once") && len(s.conns) > 0 {
		return errors.New("toy: database is locked")
	}
	select {
	case s.conns <- struct{}{}:
	case <-time.After(long):
		return errors.New("toy: no connection")
	}
	returned := false
	defer func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.over = true
		if returned || !s.breaks("panic-leaks-the-connection") {
			<-s.conns
		}
		if !returned && s.breaks("panic-commits") {
			s.apply(tx)
		}
		if s.breaks("panic-becomes-nothing") && recover() != nil {
			err = nil
		}
	}()
	inner := context.WithValue(ctx, toyTxKey{}, tx)
	if s.breaks("work-gets-a-context-of-its-own") {
		inner = context.WithValue(context.Background(), toyTxKey{}, tx)
	}
	settlements, err := w(inner)
	returned = true
	switch {
	case err != nil && len(claims) > 1 && s.breaks("many-commit-the-others"):
		_ = s.commitAll(claims[1:], settlements[1:], tx)
		return err
	case err != nil:
		return s.rolledBack(claims[0], tx, err)
	case len(claims) > 1:
		return s.commitAll(claims, settlements, tx)
	}
	return s.commit(ctx, claims[0], settlements[0], tx)
}

// commitAll is commit for several runs.
func (s *toyInbox) commitAll(claims []dedupstore.Claim, settlements []dedupstore.Settlement, tx *toyTx) error {
	err := dedupstore.ValidateFinishes(settlements, len(claims))
	switch {
	case err != nil && !s.breaks("many-accept-any-settlement"):
		return err
	case tx.aborted:
		return errToyAborted
	case tx.loseAll:
		return errToyReply
	}
	s.database.Lock()
	defer s.database.Unlock()
	for _, c := range claims {
		rec := s.load(c.Key, time.Now())
		if rec == nil || rec.owner != c.Owner || rec.fence != c.Fence || rec.state != dedupstore.Running {
			if !s.breaks("many-lost-claims-are-committed") {
				return dedupstore.ErrClaimLost
			}
		}
	}
	for i, c := range claims {
		if i >= len(settlements) || i > 0 && s.breaks("many-settle-the-first-alone") {
			break
		}
		settlement := settlements[i]
		if s.breaks("many-have-one-outcome") {
			settlement = settlements[0]
		}
		_ = dedupstore.SettleOne(context.Background(), s.toy, c, settlement)
	}
	for name, n := range tx.effects {
		s.table[name] += n
	}
	if tx.loseReply {
		return errToyReply
	}
	return nil
}

func (s *toyInbox) rolledBack(c dedupstore.Claim, tx *toyTx, err error) error {
	switch s.broken {
	case "error-commits":
		s.apply(tx)
	case "error-releases":
		_ = dedupstore.SettleOne(context.Background(), s, c, dedupstore.Release{})
	case "error-fails":
		_ = dedupstore.SettleOne(context.Background(), s, c, finish(failed(err.Error())))
	case "error-is-wrapped":
		return fmt.Errorf("in transaction: %w", err)
	case "lost-claims-of-the-work-are-the-store's":
		if errors.Is(err, dedupstore.ErrClaimLost) {
			return dedupstore.ErrClaimLost
		}
	case "conflicts-keep-the-effects":
		if tx.conflict != nil {
			s.apply(tx)
		}
	}
	return err
}

// apply makes the effects seen.
func (s *toyInbox) apply(tx *toyTx) {
	s.database.Lock()
	defer s.database.Unlock()
	for name, n := range tx.effects {
		s.table[name] += n
	}
}

// commit settles and commits in one step, but for what is broken.
func (s *toyInbox) commit(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement, tx *toyTx) error {
	f, ok := settlement.(dedupstore.Finish)
	if err := dedupstore.ValidateSettlement(settlement); err != nil && !s.breaks("accepts-any-settlement") {
		return err
	}
	if !ok && !s.breaks("accepts-any-settlement") && !s.breaks("release-commits") {
		return &dedupstore.InvalidError{Field: "Settlement", Problem: fmt.Sprintf("is %T, want Finish", settlement)}
	}
	if ok {
		settlement = s.spoiled(f)
	}
	if s.breaks("lease-is-checked-at-the-commit") && s.expired(c) {
		return dedupstore.ErrClaimLost
	}
	if s.breaks("heartbeat-spoils-the-transaction") && s.extended(c) {
		tx.conflict = errToyRefused
		return errToyRefused
	}
	if s.breaks("commit-locks-the-record") {
		s.locked.Add(1)
		<-time.After(time.Minute)
		s.locked.Add(-1)
	}
	ended := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	switch {
	case tx.aborted && s.breaks("aborted-is-a-success"):
		return nil
	case tx.aborted:
		return errToyAborted
	case tx.loseAll:
		return errToyReply
	}
	if s.apart() {
		return s.commitApart(ctx, c, settlement, tx, ended)
	}
	s.database.Lock()
	defer s.database.Unlock()
	before := s.load(c.Key, time.Now())
	if before != nil && s.breaks("claims-come-back") {
		s.below.Store(c.Key, *before)
	}
	repeated := before != nil && before.state != dedupstore.Running && !s.breaks("publisher-may-finish")
	if err := s.settleInTx(ctx, c, settlement); err != nil {
		if s.breaks("lost-claims-are-swallowed") {
			return nil
		}
		return err
	}
	if repeated && !s.breaks("repeated-finish-commits") {
		return nil
	}
	for name, n := range tx.effects {
		s.table[name] += n
	}
	if tx.loseReply {
		return errToyReply
	}
	return nil
}

// spoiled is an outcome as a store keeps it that loses a part.
func (s *toyInbox) spoiled(f dedupstore.Finish) dedupstore.Finish {
	switch s.broken {
	case "outputs-are-dropped":
		f.Outcome.Produced = nil
	case "headers-are-dropped":
		f.Outcome.Produced = slices.Clone(f.Outcome.Produced)
		for i := range f.Outcome.Produced {
			f.Outcome.Produced[i].Header = nil
		}
	case "outcome-is-forgotten-after-a-second":
		f.Retention = time.Second
	case "outcome-is-forgotten-at-once":
		f.Retention = time.Millisecond
	case "outcome-is-kept-for-ever":
		f.Retention = 99 * 365 * 24 * time.Hour
	case "all-outcomes-are-successes":
		f.Outcome.Kind, f.Outcome.Exhausted = dedupstore.Succeeded, false
	case "truncation-is-dropped":
		f.Outcome.Truncated = false
	case "published-is-ignored":
		f.Published = false
	}
	return f
}

func (s *toyInbox) settleInTx(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	if s.breaks("owner-ignored") {
		s.mu.Lock()
		if rec := s.load(c.Key, time.Now()); rec != nil {
			c.Owner, c.Fence = rec.owner, rec.fence
		}
		s.mu.Unlock()
		if c.Owner == "" {
			return nil
		}
	}
	err := dedupstore.SettleOne(ctx, s, c, settlement)
	if s.breaks("missing-record-is-fine") && errors.Is(err, dedupstore.ErrClaimLost) &&
		s.load(c.Key, time.Now()) == nil {
		return nil
	}
	return err
}

// apart tells whether effect and outcome are committed by two steps.
func (s *toyInbox) apart() bool {
	return s.breaks("settles-before-the-commit") || s.breaks("settles-after-the-commit") ||
		s.breaks("end-of-context-stops-the-commit")
}

func (s *toyInbox) commitApart(
	ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement, tx *toyTx, ended bool,
) error {
	if s.breaks("settles-after-the-commit") {
		s.apply(tx)
		<-time.After(10 * time.Millisecond)
		return dedupstore.SettleOne(ctx, s, c, settlement)
	}
	if err := dedupstore.SettleOne(ctx, s, c, settlement); err != nil {
		return err
	}
	if s.breaks("end-of-context-stops-the-commit") && ended {
		return context.Canceled
	}
	<-time.After(10 * time.Millisecond)
	s.apply(tx)
	return nil
}

func (s *toyInbox) expired(c dedupstore.Claim) bool {
	s.database.Lock()
	defer s.database.Unlock()
	rec := s.load(c.Key, time.Now())
	return rec != nil && !time.Now().Before(rec.lease)
}

func (s *toyInbox) extended(c dedupstore.Claim) bool {
	s.database.Lock()
	defer s.database.Unlock()
	rec := s.load(c.Key, time.Now())
	return rec != nil && rec.started
}
