package faults_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Two messages that are too large, one for the server and one for the stream. Full: among 10,000.
func TestOutbox_PoisonIsParkedWithItsReasonAndTheOthersFlow(t *testing.T) {
	t.Parallel()
	for name, ordered := range map[string]bool{"unordered": false, "ordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			poisoned(t, ordered)
		})
	}
}

// poisons are sizes by message ID, and what the reason must say.
var poisons = map[string]struct {
	size   int
	reason string
}{
	"too-large-for-the-server": {100 << 10, nats.ErrMaxPayload.Error()},
	"too-large-for-the-stream": {32 << 10, "message size exceeds maximum allowed"},
}

func poisoned(t *testing.T, ordered bool) {
	broker := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	db := postgrestest.Shared(t).NewDatabase(t)
	cfg := shortLease()
	cfg.BatchSize, cfg.MaxAttempts = 100, 3
	cfg.PublishTimeout, cfg.Lease = 20*time.Second, time.Minute // nothing but the poison comes twice
	m := newMint(t, db.DSN(), []string{broker.URL()}, broker.JetStream(), jetstream.StreamConfig{MaxMsgSize: 16 << 10}, ordered, cfg)
	relays := m.startAll(2)
	waiting := m.sellPoison(full(10_000, 1000))
	if !ordered {
		waiting = 0
	}
	start := time.Now()
	until(t, "the others to be published", func() bool { s := m.stats(); return s.Dead == len(poisons) && s.Pending == waiting })
	t.Logf("%v after the last message the others were published, %d wait for dead ones", time.Since(start), waiting)
	m.checkDead(cfg)
	lasts(10 * cfg.PollInterval) // nobody tries again
	m.checkAttempts(cfg)

	m.sellMore(t, 200)
	for id := range poisons {
		n, err := m.box.Discard(t.Context(), outbox.RowInfo{ID: id})
		if err != nil || n != 1 {
			t.Errorf("Discard of %s: %d, %v", id, n, err)
		}
		m.exec(`DELETE FROM orders WHERE id = $1`, id)
	}
	m.finish(relays...).MustExplain(t, ledger.AnswerRefused)
	m.checkAttempts(cfg)
}

// sellPoison writes messages, with the poison in the middle, and returns how many later ones have keys of poison.
func (m *mint) sellPoison(n int) (behind int) {
	m.t.Helper()
	keys := map[string]bool{}
	for written := 0; written < n; written += 100 {
		s := m.newSale(100)
		for id, p := range poisons {
			if written == n/2 {
				at := len(keys) * 10
				s.messages[at] = producer.Message{ID: id, Topic: ordersStream, Key: fmt.Sprintf("customer-%02d", len(keys)), Payload: make([]byte, p.size)}
				keys[s.messages[at].Key] = true
			}
		}
		begun := map[string]bool{}
		for _, message := range s.messages {
			_, poison := poisons[message.ID]
			begun[message.Key] = begun[message.Key] || poison || written > n/2
			if keys[message.Key] && begun[message.Key] && !poison {
				behind++
			}
		}
		tx, err := m.pool.Begin(m.t.Context())
		m.fatal(err)
		m.fatal(m.write(m.t.Context(), tx, s))
		m.fatal(tx.Commit(m.t.Context()))
	}
	return behind
}

// sellMore writes further messages.
func (m *mint) sellMore(t *testing.T, n int) {
	t.Helper()
	m.sell(t.Context(), m.written()+n, 2, 0)
}

// checkDead looks at what operators see.
func (m *mint) checkDead(cfg outbox.Config) {
	m.t.Helper()
	dead, err := m.box.List(m.t.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "")
	m.fatal(err)
	for _, row := range dead.Rows {
		p, known := poisons[row.ID]
		if !known || row.Failures != cfg.MaxAttempts || row.Unknowns != 0 || !strings.Contains(row.Error, p.reason) {
			m.t.Errorf("dead: %+v, want %d failures and the reason %q", row, cfg.MaxAttempts, p.reason)
		}
	}
}

// checkAttempts wants every message to be sent once, and the poison as often as it may.
func (m *mint) checkAttempts(cfg outbox.Config) {
	m.t.Helper()
	m.fatal(m.ReadRelays(m.dir))
	for id, a := range m.Messages() {
		want := 1
		if _, poison := poisons[id]; poison {
			want = cfg.MaxAttempts
		}
		if len(a.Sendings) != want {
			m.t.Errorf("%s was sent %d times, want %d", id, len(a.Sendings), want)
		}
	}
}
