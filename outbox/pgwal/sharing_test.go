package pgwal_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/outbox/pgwal"
)

// A relay confirms what it does not publish: with the slot of others their messages would be lost, without a word.
func TestRelay_RefusesTheSlotOfOthers(t *testing.T) {
	t.Parallel()
	rows, messages := newRig(t), newRig(t, func(c *pgwal.Config) { c.Prefix = c.Slot + ".eu" })
	for _, owner := range []*rig{rows, messages} {
		whose := "." + "oncemill_outbox"
		if owner == messages {
			whose = messages.config.Prefix
		}
		for name, other := range map[string]*rig{
			"table":    newRig(t),
			"messages": newRig(t, func(c *pgwal.Config) { c.Prefix = messages.config.Slot + "-eu" }),
		} {
			shared := func(c *pgwal.Config) { c.Slot = owner.config.Slot }
			for what, err := range map[string]error{
				"Setup": other.relay(shared).Setup(t.Context()), "Run": other.run(shared), "Drop": other.relay(shared).Drop(t.Context()),
			} {
				t.Log(name, what)
				wantSetupError(t, err, owner.config.Slot, whose, "set Config.Slot")
			}
		}
		owner.start()
		owner.write(message("order"))
		until(t, "the message", func() bool { return len(owner.broker.got()) == 1 })
	}
}

// What Setup made before it said whose a slot is.
func TestSetup_SaysWhoseAnOlderSlotIs(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *pgwal.Config) { c.Prefix = c.Slot + ".eu" })
	g.exec(`COMMENT ON PUBLICATION ` + g.config.Slot + ` IS NULL`)
	if err := g.relay().Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := func(c *pgwal.Config) { c.Prefix = c.Slot + "-eu" }
	wantSetupError(t, g.relay(other).Setup(t.Context()), g.config.Prefix)
	wantSetupError(t, g.run(other), g.config.Prefix)
}

// A publication that others made, with tables of theirs, and which this role must not comment on.
func TestSetup_TakesThePublicationOfOthersThatHasNoOutbox(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *pgwal.Config) { c.Prefix = c.Slot })
	name := g.config.Slot
	if err := g.relay().Drop(t.Context()); err != nil { // the slot, too: it would have to read what others write now, without a publication
		t.Fatal(err)
	}
	g.exec(`CREATE TABLE users (n int); CREATE TABLE users_settings (n int); CREATE PUBLICATION ` + name + ` FOR TABLE users`)
	role := name + "_role"
	g.exec(`CREATE ROLE ` + role + ` LOGIN REPLICATION; GRANT ALL ON SCHEMA ` + name + ` TO ` + role + `;
		GRANT ALL ON ALL TABLES IN SCHEMA ` + name + ` TO ` + role)
	t.Cleanup(func() { g.exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	config := g.pool.Config()
	config.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	restricted := func(c *pgwal.Config) { c.Pool = pool }
	if err := g.relay(restricted).Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.start(restricted)
	g.write(message("order"))
	until(t, "the message", func() bool { return len(g.broker.got()) == 1 })
}
