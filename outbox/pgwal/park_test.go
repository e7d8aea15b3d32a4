package pgwal_test

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

func refuseAll(_ context.Context, messages []producer.Message) error {
	var failures []producer.Failure
	for i, m := range messages {
		failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("the topic is gone")})
	}
	return &producer.PublishError{Failures: failures}
}

func TestRelay_ParkingManyMessagesEnds(t *testing.T) {
	t.Parallel()
	const n = 300
	g := newRig(t, func(c *pgwal.Config) { c.Prefix, c.MaxAttempts, c.StoreTimeout = c.Slot, 1, 400*time.Millisecond })
	// Each takes a part of the timeout, all of them much more.
	g.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END $$`)
	g.exec(`CREATE TRIGGER slow BEFORE INSERT ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
	g.broker.set(refuseAll)
	g.write(numbered(n)...)
	g.start()
	g.awaitConfirmed()
	if dead := value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`); dead != n {
		t.Errorf("%d dead rows, want %d", dead, n)
	}
}

func TestRelay_ParkingGoesOnWhereItFailed(t *testing.T) {
	t.Parallel()
	const n = 20
	g := newRig(t, func(c *pgwal.Config) { c.Prefix, c.MaxAttempts = c.Slot, 1 })
	g.exec(`CREATE SEQUENCE writes`) // counts through rollbacks
	g.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('writes') % 10 = 0 THEN RAISE 'disk full'; END IF; RETURN NEW; END $$`)
	g.exec(`CREATE TRIGGER fail BEFORE INSERT ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION fail()`)
	g.broker.set(refuseAll)
	g.write(numbered(n)...)
	g.start()
	g.awaitConfirmed()
	if dead := value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`); dead != n {
		t.Errorf("%d dead rows, want %d", dead, n)
	}
	if writes := value[int](g, `SELECT last_value FROM writes`); writes != n+2 {
		t.Errorf("%d writes for %d messages and 2 failures", writes, n)
	}
}

func TestRelay_StopDoesNotWaitForAllParking(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *pgwal.Config) {
		c.Prefix, c.MaxAttempts, c.StoreTimeout, c.StopTimeout = c.Slot, 1, 300*time.Millisecond, 300*time.Millisecond
	})
	g.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$`)
	g.exec(`CREATE TRIGGER slow BEFORE INSERT ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
	g.broker.set(refuseAll)
	for _, m := range numbered(200) {
		g.write(m)
	}
	dead := func() int { return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`) }
	stop := g.start()
	until(t, "a dead row", func() bool { return dead() > 0 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the stop took %v", took)
	}
	g.exec(`DROP TRIGGER slow ON oncemill_outbox`)
	g.start(func(c *pgwal.Config) { c.StoreTimeout = 10 * time.Second })
	g.awaitConfirmed()
	if n := dead(); n != 200 {
		t.Errorf("%d dead rows, want 200", n)
	}
}

func TestRelay_ForeignMessageWithATopicThatNoTableTakesIsParked(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *pgwal.Config) { c.Prefix, c.MaxAttempts = c.Slot, 1 })
	g.broker.set(refuse("bad"))
	g.start()
	envelope := `{"id":"bad","topic":"a\u0000b"}`
	content := append(binary.AppendUvarint([]byte{1}, uint64(len(envelope))), envelope...)
	g.exec(`SELECT pg_logical_emit_message(true, $1::text, $2::bytea)`, g.config.Prefix, content)
	g.write(message("good"))
	g.awaitConfirmed()
	dead, err := g.box.Dead(t.Context(), 10)
	if err != nil || len(dead) != 1 || dead[0].Topic != g.config.Prefix {
		t.Errorf("dead: %+v, %v", dead, err)
	}
}
