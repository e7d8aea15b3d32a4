package pgstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
)

// A host vanishes while it sends the second request of a settlement: the server has its first bytes.
func TestSettle_WhoVanishesWithinASaveKeepsNoRecord(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	s := newStore(t, direct, Config{})
	cfg := direct.Config()
	port := strconv.Itoa(int(cfg.ConnConfig.Port))
	addr, stuck, stop := halfProxy(t, net.JoinHostPort(cfg.ConnConfig.Host, port))
	defer stop()
	pool := poolIn(t, cfg.ConnConfig.RuntimeParams["search_path"], func(c *pgxpool.Config) {
		c.ConnConfig.Host, c.ConnConfig.Port = addr.IP.String(), uint16(addr.Port)
		c.ConnConfig.Fallbacks = nil
	})
	far := unmigrated(t, pool, Config{})
	finish := func(n int) dedupstore.Finish {
		return dedupstore.Finish{Retention: long, Outcome: dedupstore.Outcome{
			Kind:     dedupstore.Succeeded,
			Produced: []dedupstore.Produced{{ID: "a", Topic: "t", Payload: make([]byte, n)}},
		}}
	}
	// warm: the statements are prepared
	warm := make([]dedupstore.Settling, 0)
	for i := range 40 {
		warm = append(warm, dedupstore.Settling{Claim: runOf(t, s, fmt.Sprint("warm-", i)), Settlement: finish(10)})
	}
	var wg sync.WaitGroup
	for _, w := range warm {
		wg.Go(func() { far.Settle(t.Context(), []dedupstore.Settling{w}) })
	}
	wg.Wait()
	c := runOf(t, s, "1")
	stuck.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := dedupstore.SettleOne(ctx, far, c, finish(200_000)); err == nil {
		t.Fatal("a settlement that the server has half of was answered")
	}
	until(t, "the record", func() bool { return dedupstore.SettleOne(t.Context(), s, c, finish(10)) == nil })
}

// halfProxy passes requests on. Once told, it passes only the first 4,000 bytes of one that has more than 8,000, and
// keeps the connection to the server, as the network does with a host that has vanished.
func halfProxy(t *testing.T, target string) (*net.TCPAddr, *atomic.Bool, func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	armed := new(atomic.Bool)
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			srv, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c, srv)
			mu.Unlock()
			go func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := srv.Read(buf)
					if err != nil {
						c.Close()
						return
					}
					c.Write(buf[:n])
				}
			}()
			go func() {
				dead := false
				buf := make([]byte, 1<<20)
				for {
					n, err := c.Read(buf)
					if dead {
						if err != nil {
							return // the server hears nothing of it
						}
						continue
					}
					if err != nil {
						srv.Close()
						return
					}
					if n > 8000 && armed.CompareAndSwap(true, false) {
						srv.Write(buf[:4000])
						dead = true
						continue
					}
					srv.Write(buf[:n])
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr), armed, func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}
}
