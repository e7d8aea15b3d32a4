package pgwal

import (
	"container/list"

	"github.com/jackc/pglogrepl"
)

// A txn is a transaction of the log with messages that are not all settled.
type txn struct {
	before    pglogrepl.LSN // up to where everything was shown when it began
	ended     bool          // its end was shown
	unsettled int
	place     *list.Element
}

// progress knows what can be confirmed: everything before the first transaction that is not settled. It begins with
// nothing, and not with what the slot says: the connection that looks there may lead to another server than the one
// that shows the log.
type progress struct {
	open  list.List     // of *txn, in the order of commits
	now   *txn          // the one that is being shown
	shown pglogrepl.LSN // zero: nothing yet
}

func (p *progress) begin() {
	p.now = &txn{before: p.shown}
	p.now.place = p.open.PushBack(p.now)
}

// add counts a message of the transaction that is being shown.
func (p *progress) add() *txn {
	if p.now == nil {
		p.begin() // never: messages are shown between begin and commit
	}
	p.now.unsettled++
	return p.now
}

// commit ends the transaction that is being shown.
func (p *progress) commit(end pglogrepl.LSN) {
	t := p.now
	p.now = nil
	p.reached(end)
	if t != nil {
		t.ended = true
		p.close(t)
	}
}

// reached notes that everything before lsn was shown. In the middle of a transaction that says nothing.
func (p *progress) reached(lsn pglogrepl.LSN) {
	if p.now == nil {
		p.shown = max(p.shown, lsn)
	}
}

// done counts a settled message.
func (p *progress) done(t *txn) {
	t.unsettled--
	p.close(t)
}

func (p *progress) close(t *txn) {
	if t.ended && t.unsettled == 0 {
		p.open.Remove(t.place)
	}
}

// confirmed is up to where everything is settled.
func (p *progress) confirmed() pglogrepl.LSN {
	if first := p.open.Front(); first != nil {
		return first.Value.(*txn).before
	}
	return p.shown
}
