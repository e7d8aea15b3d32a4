package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// An inbox is a conn to a server that is a database: effects and outcome are committed together.
type inbox struct{ conn }

// A transaction is one of a database.
type transaction struct {
	claims  []dedupstore.Claim
	first   []*dedupstore.Stored // of first runs: the records to make, and the requests for them; else nil
	asked   []dedupstore.Request
	answers []dedupstore.Answer
	owner   string // of first runs: who has the keys
	names   []string
	fences  []uint64 // of the effects
	several bool     // runs are asked for
	begun   bool
	over    bool
	refused error // by the database, because of others
	lose    int   // for tests of the contract: 1 loses the answer to the commit, 2 the commit
}

type transactionKey struct{}

func transactionOf(ctx context.Context) *transaction {
	tx, _ := ctx.Value(transactionKey{}).(*transaction)
	return tx
}

var (
	errConflict = errors.New("sim: could not serialize access")
	errOver     = errors.New("sim: the transaction is over")
	errCommit   = errors.New("sim: the answer to the commit is lost")
)

// commit makes effects and outcomes happen together, or nothing.
func (s *server) commit(by string, tx *transaction, finishes []dedupstore.Finish) error {
	for _, c := range tx.claims {
		delete(s.locked, c.Key)
	}
	if tx.over {
		return nil // the commit came before
	}
	tx.over = true
	defer s.leave(tx)
	if tx.refused != nil {
		return tx.refused
	}
	now := s.now()
	next := make([]*dedupstore.Stored, len(tx.claims))
	for i, c := range tx.claims {
		rec := s.find(c.Key, now)
		if tx.first[i] != nil {
			if s.making[c.Key] != tx.owner {
				return errOver
			}
			rec = *tx.first[i]
		}
		var err error
		if next[i], err = rec.Settle(c, finishes[i], now); err != nil || next[i] == nil {
			if s.watch != nil {
				s.watch.settled(by, dedupstore.Settling{Claim: c, Settlement: finishes[i]}, err, now)
			}
			return err
		}
	}
	for i, c := range tx.claims {
		s.keep(c.Key, next[i])
		if s.watch == nil {
			continue
		}
		if tx.first[i] != nil {
			s.watch.claimed(by, tx.asked[i], tx.answers[i], now)
		}
		s.watch.settled(by, dedupstore.Settling{Claim: c, Settlement: finishes[i]}, nil, now)
	}
	for i, name := range tx.names {
		s.effects[name]++
		if s.watch != nil {
			s.watch.committed(name, tx.fences[i])
		}
	}
	return nil
}

// leave ends the locks of a first run's transaction.
func (s *server) leave(tx *transaction) {
	for i, c := range tx.claims {
		if tx.first[i] != nil && s.making[c.Key] == tx.owner {
			delete(s.making, c.Key)
		}
	}
}

// outcomeOf is what the record says of a claim's outcome: stored, not stored, or not to be known while it is locked.
func (s *server) outcomeOf(c dedupstore.Claim) (stored, known bool) {
	if _, locked := s.locked[c.Key]; locked {
		return false, false
	}
	rec := s.find(c.Key, s.now())
	return rec.Owner == c.Owner && rec.Fence == c.Fence && slices.Contains(rec.Settled, c.Owner) &&
		(rec.State == dedupstore.Finished || rec.State == dedupstore.Publishing), true
}

// first locks keys that have no record and that nobody has.
func (s *server) first(by, owner string, r dedupstore.Request) (*dedupstore.Stored, dedupstore.Answer) {
	now := s.now()
	if _, taken := s.making[r.Key]; taken {
		return nil, dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: r.Lease}
	}
	rec := s.find(r.Key, now)
	if rec.Look(r.Key, now).State != dedupstore.Absent {
		answer := s.claim(by, r).Answer
		return nil, answer
	}
	next, a := rec.Claim(r, now)
	s.making[r.Key] = owner
	if s.watch != nil {
		s.watch.begun(by, r, a, now)
	}
	return next, a
}

// ask is exchange for one operation.
func ask[R any](ctx context.Context, i *inbox, kind, id string, apply func(string) R, failed func(error) R,
	text func(R) string) R {
	return exchange(ctx, &i.conn, kind, []string{id}, func(s string) string { return s },
		func(by, _ string) R { return apply(by) }, failed, func(_ string, r R) string { return text(r) })[0]
}

func (i *inbox) askError(ctx context.Context, kind, id string, apply func(string) error) error {
	return ask(ctx, i, kind, id, apply, itself, sayError)
}

// tries is how often a transaction is made again that the database refused.
const tries = 4

// TakesFirst implements [dedupstore.Transactor].
func (*inbox) TakesFirst() bool { return true }

// InTx implements [dedupstore.Transactor].
func (i *inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if err := cmp.Or(dedupstore.ValidateRuns(runs), ctx.Err()); err != nil {
		return nil, err
	}
	lease := runs[0].Claim.Lease
	if runs[0].First != nil {
		lease = runs[0].First.Lease
	}
	for n := 1; ; n++ {
		tx, answers, err := i.begin(ctx, runs, lease)
		if tx == nil {
			return answers, err
		}
		err = i.try(ctx, tx, lease, func(ctx context.Context) ([]dedupstore.Finish, error) {
			settlements, err := work(ctx, tx.claims)
			if err == nil {
				err = dedupstore.ValidateFinishes(settlements, len(tx.claims))
			}
			if err != nil {
				return nil, err
			}
			finishes := make([]dedupstore.Finish, len(settlements))
			for n, s := range settlements {
				finishes[n] = s.(dedupstore.Finish)
			}
			return finishes, nil
		})
		_, undecided := errors.AsType[*dedupstore.UndecidedError](err)
		onlyFirst := !slices.ContainsFunc(runs, func(r dedupstore.TxRun) bool { return r.First == nil })
		switch {
		case undecided && onlyFirst:
			for n, r := range runs {
				if answers[n].Status == "" {
					answers[n] = dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: r.First.Lease}
				}
			}
			return answers, nil
		case tx.refused == nil:
			return answers, err
		case n == tries:
			return nil, &dedupstore.ConflictError{Err: err}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

func (i *inbox) dead() bool { return i.process != nil && i.process.ctx.Err() != nil }

// try makes one transaction.
func (i *inbox) try(ctx context.Context, tx *transaction, lease time.Duration,
	work func(context.Context) ([]dedupstore.Finish, error)) error {
	id := tx.claims[0].Key.ID
	returned := false
	end := func() { // rolled back
		i.at(id, func() {
			if !tx.over {
				tx.over = true
				i.server.leave(tx)
				i.rolledBack(tx)
			}
		})
	}
	defer func() {
		if !returned {
			end()
		}
	}()
	finishes, err := work(context.WithValue(ctx, transactionKey{}, tx))
	returned = true
	if err != nil {
		end()
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease/3)
	defer cancel()
	failed := i.askError(bounded, "commit", id, func(by string) error {
		if i.process == nil && tx.lose == 2 {
			tx.over = true
			i.server.leave(tx)
			return errCommit
		}
		said := i.server.commit(by, tx, finishes)
		if said != nil {
			i.rolledBack(tx)
		}
		switch {
		case i.process == nil && tx.lose == 1:
			return errCommit
		case said != nil:
			return refusal{said}
		}
		return nil
	})
	if failed == nil {
		return nil
	}
	if said, answered := failed.(refusal); answered { //nolint:errorlint // the answer itself
		return said.error
	}
	return i.lookUp(ctx, tx, lease, failed)
}

// A refusal is what the database says of a commit that it does not do.
type refusal struct{ error }

// lookUp finds out what became of a commit that was not answered.
func (i *inbox) lookUp(ctx context.Context, tx *transaction, lease time.Duration, lost error) error {
	c := tx.claims[0]
	for until := time.Now().Add(lease); ; {
		if i.dead() {
			return dedupstore.ErrClaimLost
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease/6)
		stored, known := false, false
		err := i.askError(bounded, "look", c.Key.ID, func(string) error {
			if i.server.hidden[c.Key] {
				return errRefused
			}
			if stored, known = i.server.outcomeOf(c); known && !stored {
				tx.over = true // the server has ended what it had not committed
				i.server.leave(tx)
				i.rolledBack(tx)
			}
			return nil
		})
		cancel()
		switch {
		case err == nil && known && stored:
			return nil
		case err == nil && known:
			return lost
		case !time.Now().Before(until):
			i.at(c.Key.ID, func() { // the server notices that the connection is gone, unless it has the commit
				if _, locked := i.server.locked[c.Key]; !locked && !tx.over {
					tx.over = true
					i.server.leave(tx)
				}
			})
			return &dedupstore.UndecidedError{Err: lost}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// at has something happen at the server, unseen by the network.
func (i *inbox) at(id string, do func()) {
	if i.process == nil {
		i.server.mu.Lock()
		defer i.server.mu.Unlock()
		do()
		return
	}
	done := make(chan struct{})
	i.process.world.arrive(i.process.name+" rollback "+id, func() {
		do()
		close(done)
	})
	<-done
}

func (i *inbox) rolledBack(tx *transaction) {
	if i.server.watch != nil {
		for _, c := range tx.claims {
			i.server.watch.rolledBack(c, tx.refused != nil || tx.several)
		}
	}
}

// begin begins a transaction: it looks whether the claimed runs have their outcomes, and makes the records of first runs.
// It returns none if there is nothing to do.
func (i *inbox) begin(
	ctx context.Context, runs []dedupstore.TxRun, lease time.Duration,
) (*transaction, []dedupstore.Answer, error) {
	kind, id, owner := "begin", runs[0].Claim.Key.ID, runs[0].Claim.Owner
	if first := runs[0].First; first != nil {
		kind, id, owner = "first", first.Key.ID, first.Owner
	}
	tx := &transaction{owner: fmt.Sprintf("%s %p", owner, &runs[0]), several: len(runs) > 1}
	answers := make([]dedupstore.Answer, len(runs))
	claimed, stored := 0, 0
	bounded, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	err := i.askError(bounded, kind, id, func(by string) error {
		if tx.over || tx.begun {
			return nil // a copy of the request
		}
		tx.begun = true
		for n, r := range runs {
			if r.First == nil {
				claimed++
				if has, _ := i.server.outcomeOf(r.Claim); has {
					stored++
				}
				tx.add(r.Claim, nil, dedupstore.Request{}, dedupstore.Answer{})
				continue
			}
			next, a := i.server.first(by, tx.owner, *r.First)
			if next == nil {
				answers[n] = a
				continue
			}
			tx.add(a.Claim, next, *r.First, a)
		}
		return nil
	})
	leave := func() {
		i.at(id, func() {
			tx.over = true
			i.server.leave(tx)
		})
	}
	switch {
	case err != nil: // its connection is over
		leave()
		if i.dead() {
			err = dedupstore.ErrClaimLost
		}
		return nil, nil, err
	case stored > 0:
		leave()
		if stored < len(tx.claims) {
			return nil, nil, dedupstore.ErrClaimLost
		}
		return nil, answers, nil
	case len(tx.claims) == 0:
		return nil, answers, nil
	}
	if i.process != nil && slices.ContainsFunc(tx.first, func(made *dedupstore.Stored) bool { return made != nil }) {
		i.process.open2 = append(i.process.open2, tx)
	}
	return tx, answers, nil
}

// add adds a run.
func (tx *transaction) add(c dedupstore.Claim, made *dedupstore.Stored, r dedupstore.Request, a dedupstore.Answer) {
	tx.claims, tx.first = append(tx.claims, c), append(tx.first, made)
	tx.asked, tx.answers = append(tx.asked, r), append(tx.answers, a)
}
