package pgoutbox_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// proof is whether time does not matter.
func proof() bool { return os.Getenv("ONCEMILL_PROOF") == "1" }

// A history is the steps of three transactions, each by the number of its transaction: begin, insert, end. Transactions are
// alike, so they begin in the order of their numbers.
type history struct {
	steps  []int
	commit [3]bool
}

// histories are all orders of events, and all ends.
func histories() (all []history) {
	var extend func(steps []int, done [3]int)
	extend = func(steps []int, done [3]int) {
		if len(steps) == 9 {
			for ends := range 8 {
				all = append(all, history{append([]int(nil), steps...), [3]bool{ends&1 > 0, ends&2 > 0, ends&4 > 0}})
			}
			return
		}
		for tx := range 3 {
			if done[tx] == 3 || (done[tx] == 0 && tx > 0 && done[tx-1] == 0) {
				continue
			}
			next := done
			next[tx]++
			extend(append(steps, tx), next)
		}
	}
	extend(nil, [3]int{})
	return all
}

func TestLease_NoOrderOfEventsSkipsARowOrShowsAPhantom(t *testing.T) {
	t.Parallel()
	all := histories()
	if len(all) != 280*8 {
		t.Fatalf("%d histories, want all 280 orders with 8 ends each", len(all))
	}
	step := 61
	if proof() {
		step = 1
	}
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%v", ordered), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			box := boxIn(t, pool, pgoutbox.Config{Ordered: ordered})
			for i := 0; i < len(all); i += step {
				all[i].play(t, box, pool, i)
				if t.Failed() {
					t.Fatalf("in history %d: %+v", i, all[i])
				}
			}
		})
	}
}

// play runs the steps, and looks for rows between all of them.
func (h history) play(t *testing.T, box *pgoutbox.Outbox, pool *pgxpool.Pool, number int) {
	t.Helper()
	var txs [3]pgx.Tx
	var done [3]int
	committed, published := map[string]bool{}, map[string]bool{}
	poll := func() {
		t.Helper()
		var results []outbox.Result
		for _, r := range lease(t, box, "poll", time.Minute) {
			if id := r.Message.ID; !committed[id] || published[id] {
				t.Errorf("row %s was handed out, committed %v, published before %v", id, committed[id], published[id])
			}
			published[r.Message.ID] = true
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Removed})
		}
		settle(t, box, "poll", results...)
	}
	for _, tx := range h.steps {
		id := fmt.Sprintf("%d-%d", number, tx)
		switch done[tx]++; done[tx] {
		case 1:
			txs[tx] = begin(t, pool)
		case 2:
			// Partitions of their own: writers of one would wait for each other.
			m := producer.Message{ID: id, Topic: "orders", Key: [...]string{"a", "b", "c"}[tx], Payload: []byte("x")}
			if err := box.In(txs[tx]).Publish(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		case 3:
			if !h.commit[tx] {
				rollback(t, txs[tx])
				break
			}
			committed[id] = true
			commit(t, txs[tx])
		}
		poll()
	}
	for id := range committed {
		if !published[id] {
			t.Errorf("row %s was committed and skipped", id)
		}
	}
}
