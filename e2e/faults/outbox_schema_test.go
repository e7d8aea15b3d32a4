package faults_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// If anything is wrong with the tables, a relay says what to do, and goes on when that is done.
func TestOutbox_WrongTablesAndPrivilegesAreClearErrorsUntilTheyAreMended(t *testing.T) {
	t.Parallel()
	broker := natstest.Start(t)
	db := postgrestest.Shared(t).NewDatabase(t)
	m := newMint(t, db.DSN(), []string{broker.URL()}, broker.JetStream(), jetstream.StreamConfig{}, false, shortLease())
	role := m.newRole()
	u, err := url.Parse(db.DSN())
	m.fatal(err)
	u.User = url.UserPassword(role, "secret")
	m.task.DSN = u.String()

	const missing = `is missing where the connection looks for it: call Migrate`
	m.exec(`ALTER TABLE oncemill_outbox_settings RENAME TO away`)
	relay := m.start()
	m.complains(relay, 0, missing)
	m.exec(`ALTER TABLE away RENAME TO oncemill_outbox_settings`)
	m.complains(relay, 0, `lacks a privilege on outbox table`)
	m.exec(fmt.Sprintf(`GRANT SELECT ON oncemill_outbox_settings TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON oncemill_outbox, oncemill_outbox_lease TO %[1]s`, role))
	m.goesOn()

	for _, fault := range []struct{ name, wreck, mend, words string }{
		{"missing table", `ALTER TABLE oncemill_outbox RENAME TO away`, `ALTER TABLE away RENAME TO oncemill_outbox`, missing},
		{"missing column", `ALTER TABLE oncemill_outbox RENAME COLUMN replays TO away`, `ALTER TABLE oncemill_outbox RENAME COLUMN away TO replays`, `lacks a column: call Migrate`},
		{"privilege on the table", `REVOKE UPDATE ON oncemill_outbox FROM ` + role, `GRANT UPDATE ON oncemill_outbox TO ` + role, `lacks a privilege on outbox table`},
		{"privilege on leases", `REVOKE DELETE ON oncemill_outbox_lease FROM ` + role, `GRANT DELETE ON oncemill_outbox_lease TO ` + role, `lacks a privilege on outbox table`},
	} {
		said := len(relay.says(0))
		m.exec(fault.wreck)
		m.complains(relay, said, fault.words)
		m.exec(fault.mend)
		m.goesOn()
		t.Logf("%s: noticed and got over", fault.name)
	}

	m.terminate(relay)
	m.exec(`UPDATE oncemill_outbox_settings SET version = 0`)
	relay = m.start()
	m.complains(relay, 0, `has schema version 0, want at least 2: call Migrate`)
	m.fatal(m.box.Migrate(t.Context()))
	m.goesOn()
	m.finish(relay).MustExplain(t, ledger.AnswerUnknown, ledger.LeaseSlow)
}

// newRole makes a database user without privileges.
func (m *mint) newRole() string {
	m.t.Helper()
	role := fmt.Sprintf("relay_%d", rand.Uint32())
	m.exec(fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role))
	m.t.Cleanup(func() { m.exec(fmt.Sprintf(`DROP OWNED BY %[1]s; DROP ROLE %[1]s`, role)) })
	return role
}

// complains waits for words in a relay's log.
func (m *mint) complains(r relayProcess, from int, words string) {
	m.t.Helper()
	deadline := time.Now().Add(waitLimit)
	until(m.t, "a relay to complain", func() bool {
		if time.Now().After(deadline) {
			m.t.Fatalf("the relay does not say %q:\n%s", words, r.says(from))
		}
		return strings.Contains(r.says(from), words)
	})
}

// goesOn wants messages to be published.
func (m *mint) goesOn() {
	m.t.Helper()
	m.sell(m.t.Context(), m.written()+10, 2, time.Millisecond)
	m.drain()
}
