package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// TestSettle_AReasonThatTheDatabaseCannotKeepIsKeptInASCII has outcomes that would otherwise never be recorded: their
// messages would run again.
func TestSettle_AReasonThatTheDatabaseCannotKeepIsKeptInASCII(t *testing.T) {
	t.Parallel()
	db := postgrestest.Shared(t).NewDatabase(t, `ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0`)
	// pgx leaves it at the database's, so that what it sends is taken for that
	for _, encoding := range []string{"EUC_JP", "UTF8"} {
		t.Run(encoding, func(t *testing.T) {
			pool := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = encoding })
			s := newStore(t, pool, Config{Table: "store_" + encoding})
			for reason, want := range map[string]string{"no funds": "no funds", "\U0001F4B8 refused": "? refused"} {
				failure := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason},
					Retention: long}
				if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, want), failure); err != nil {
					t.Errorf("%s: %v", reason, err)
					continue
				}
				if a := claim(t, s, request(want), dedupstore.Done); a.Outcome.Reason != want {
					t.Errorf("the reason is %q, want %q", a.Outcome.Reason, want)
				}
			}
		})
	}
}
