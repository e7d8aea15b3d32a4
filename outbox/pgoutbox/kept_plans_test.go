package pgoutbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// The server keeps plans, so a plan for the few rows of a new table must not read all of a large one.
func TestStore_PlansForANewTableAreThoseForALargeOne(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%v", ordered), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			cfg := pgoutbox.Config{Ordered: ordered}
			boxIn(t, pool, cfg)
			one := poolIn(t, pool.Config().ConnConfig.RuntimeParams["search_path"], func(c *pgxpool.Config) { c.MaxConns = 1 })
			box := unmigrated(t, one, cfg)
			for i := range 10 {
				a, b := message(fmt.Sprint("a", i)), message(fmt.Sprint("b", i))
				a.Key, b.Key = "a", "b"
				write(t, box, one, a, b)
				token := fmt.Sprint("token ", i)
				state := []outbox.State{outbox.Published, outbox.Removed, outbox.Failed}[i%3]
				var results []outbox.Result
				for _, row := range lease(t, box, token, time.Minute) {
					results = append(results, outbox.Result{Number: row.Number, State: state})
				}
				settle(t, box, token, results...)
			}
			one.Close() // what a connection has counted is shown at its end at the latest
			var reads int
			relaytest.Eventually(t, "counts of the closed connection", func() bool {
				err := pool.QueryRow(t.Context(), `SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'oncemill_outbox'::regclass AND n_tup_ins >= 20`).Scan(&reads)
				return err == nil
			})
			if indexes := 10; reads > indexes { // making them reads the table
				t.Errorf("the whole table was read %d times", reads)
			}
		})
	}
}
