package pgoutbox_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// TestMigrate_VanishedHostKeepsNoLocks: whichever answer its host does not get, another one migrates within a minute.
func TestMigrate_VanishedHostKeepsNoLocks(t *testing.T) {
	t.Parallel()
	if os.Getenv("ONCEMILL_PROOF") != "1" {
		t.Skip("ONCEMILL_PROOF=1 is not set, and the server waits 20 s for a vanished host")
	}
	pool := newPool(t)
	at := pool.Config().ConnConfig
	t.Run("answers", func(t *testing.T) { // which ends before the pool is closed
		for n := range 14 {
			t.Run(fmt.Sprint(n+1), func(t *testing.T) {
				t.Parallel()
				link := relaytest.StartLink(t, net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
				far := poolIn(t, schemaOf(t, pool), func(c *pgxpool.Config) {
					c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, "tcp", link.Addr)
					}
				})
				cfg := pgoutbox.Config{Table: fmt.Sprint("vanished_", n)}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				silent := link.Vanish(n + 1)
				err := unmigrated(t, far, cfg).Migrate(ctx)
				select {
				case <-silent:
				default:
					if err != nil {
						t.Error(err)
					}
					return // it needs no more answers
				}
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for box := unmigrated(t, pool, cfg); ; {
					if err = box.Migrate(ctx); err == nil || ctx.Err() != nil {
						break
					}
				}
				if err != nil {
					t.Errorf("a minute after a host has vanished: %v", err)
				}
			})
		}
	})
}
