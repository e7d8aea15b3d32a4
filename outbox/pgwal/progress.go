package pgwal

import (
	"container/list"

	"github.com/jackc/pglogrepl"
)

// A txn is a transaction of the log with messages that are not all settled.
type txn struct {
	before    pglogrepl.LSN // up to where everything was shown when it began
	commit    pglogrepl.LSN // where its commit begins
	end       pglogrepl.LSN // zero: its end was not shown yet
	unsettled int
	place     *list.Element
	acked     []origin // of an Emitter: nobody else keeps what was acknowledged
}

// progress knows what can be confirmed: everything before the first transaction that is not settled. It begins with nothing, and
// not with what the slot says: the connection that looks there may lead to another server than the one that shows the log.
type progress struct {
	open  list.List     // of *txn, in the order of commits
	now   *txn          // the one that is being shown
	shown pglogrepl.LSN // zero: nothing yet
}

func (p *progress) begin(commit pglogrepl.LSN) {
	p.now = &txn{before: p.shown, commit: commit}
	p.now.place = p.open.PushBack(p.now)
}

// add counts a message of the transaction that is being shown.
func (p *progress) add() *txn {
	if p.now == nil {
		p.begin(p.shown) // never: messages are shown between begin and commit
	}
	p.now.unsettled++
	return p.now
}

// commit ends the transaction that is being shown, and returns it if it is settled.
func (p *progress) commit(end pglogrepl.LSN) *txn {
	t := p.now
	p.now = nil
	p.reached(end)
	if t == nil {
		return nil
	}
	t.end = end
	return p.settled(t)
}

// reached notes that everything before lsn was shown. In the middle of a transaction that says nothing.
func (p *progress) reached(lsn pglogrepl.LSN) {
	if p.now == nil {
		p.shown = max(p.shown, lsn)
	}
}

// done counts a settled message, and returns its transaction if that is settled now.
func (p *progress) done(t *txn) *txn {
	t.unsettled--
	return p.settled(t)
}

func (p *progress) settled(t *txn) *txn {
	if t.end == 0 || t.unsettled > 0 {
		return nil
	}
	p.open.Remove(t.place)
	return t
}

// confirmed is up to where everything is settled.
func (p *progress) confirmed() pglogrepl.LSN {
	if first := p.open.Front(); first != nil {
		return first.Value.(*txn).before
	}
	return p.shown
}
