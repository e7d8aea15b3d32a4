package pgwal_test

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
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// TestSetup_VanishedHostKeepsNoLock: whichever answer its host does not get, another one runs Setup within a minute.
func TestSetup_VanishedHostKeepsNoLock(t *testing.T) {
	t.Parallel()
	if os.Getenv("ONCEMILL_PROOF") != "1" {
		t.Skip("ONCEMILL_PROOF=1 is not set, and the server waits 20 s for a vanished host")
	}
	for n := range 8 {
		t.Run(fmt.Sprint(n+1), func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			at := g.pool.Config().ConnConfig
			link := relaytest.StartLink(t, net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
			far := postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["search_path"] = at.RuntimeParams["search_path"]
				c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", link.Addr)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			silent := link.Vanish(n + 1)
			err := g.relay(func(s *settings) { s.Pool = far }).Setup(ctx)
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
			if err := g.relay().Setup(ctx); err != nil {
				t.Errorf("a minute after a host has vanished: %v", err)
			}
		})
	}
}
