package sqliteoutbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// childFolder is set for a copy of this test binary that will be killed: the folder of its files.
const childFolder = "ONCEMILL_TEST_OUTBOX_FOLDER"

// childStops makes the copy stop for ever between a publish and its mark, and say so.
const childStops = "ONCEMILL_TEST_OUTBOX_STOPS"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		shop(folder)
		return
	}
	m.Run()
}

// shop writes orders with their messages, and relays them to a file, until it is killed or its standard input ends.
func shop(folder string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	db, err := sqliteoutbox.Open(ctx, filepath.Join(folder, "shop.db"))
	check(err)
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)`)
	check(err)
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	check(err)
	check(box.Migrate(ctx))
	topic, err := os.OpenFile(filepath.Join(folder, "topic"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(err)
	var stopAt int64
	if os.Getenv(childStops) != "" {
		stopAt = 3 + rand.N[int64](10)
	}
	relay, err := outbox.NewRelay(box, &fileBroker{topic: topic, stopAt: stopAt}, impatient())
	check(err)
	go relay.Run(ctx)
	pace := time.NewTicker(5 * time.Millisecond)
	for ctx.Err() == nil {
		check(order(ctx, db, box))
		<-pace.C
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// impatient is a config whose leases end soon after a kill.
func impatient() outbox.Config {
	cfg := relaytest.Quick()
	cfg.BatchSize = 10
	cfg.PublishTimeout, cfg.Lease = 200*time.Millisecond, 600*time.Millisecond
	return cfg
}

// order writes an order and its message, whose ID the outbox mints, in one transaction, or rolls both back.
func order(ctx context.Context, db *sql.DB, box *sqliteoutbox.Outbox) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var number int64
	if err := tx.QueryRowContext(ctx, `INSERT INTO orders (id) VALUES (abs(random())) RETURNING id`).Scan(&number); err != nil {
		return err
	}
	if err := box.InSQL(tx).Publish(ctx, producer.Message{Topic: "orders", Payload: fmt.Append(nil, number)}); err != nil {
		return err
	}
	if rand.N(5) == 0 {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	box.Wake()
	return nil
}

// fileBroker appends a line for each message to a file, which a killed process leaves behind whole.
type fileBroker struct {
	topic  *os.File
	calls  atomic.Int64
	stopAt int64
}

func (b *fileBroker) Publish(_ context.Context, messages ...producer.Message) error {
	var lines strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&lines, "%s %s\n", m.Payload, m.ID)
	}
	if _, err := b.topic.WriteString(lines.String()); err != nil {
		return err
	}
	if b.calls.Add(1) == b.stopAt {
		fmt.Println("published, not marked")
		select {}
	}
	return nil
}

func TestRelay_KilledAgainAndAgainLosesNothing(t *testing.T) {
	t.Parallel()
	const kills = 10
	folder := t.TempDir()
	for i := range kills {
		runAndKill(t, folder, i%2 == 0)
	}
	db := open(t, filepath.Join(folder, "shop.db"))
	box := boxIn(t, db)
	topic, err := os.OpenFile(filepath.Join(folder, "topic"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer topic.Close()
	stop := relaytest.Start(t, box, &fileBroker{topic: topic}, impatient())
	for pending := stats(t, box).Pending; pending > 0; { // on a machine that is slow, there is much to do
		before := pending
		relaytest.Eventually(t, "the outbox gets emptier", func() bool {
			pending = stats(t, box).Pending
			return pending < before
		})
	}
	stop()

	orders := map[string]bool{}
	rows, err := db.Query(`SELECT CAST(id AS TEXT) FROM orders`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		rows.Scan(&id)
		orders[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	ids, copies := published(t, folder)
	for order := range orders {
		if ids[order] == "" {
			t.Errorf("order %s was committed and not published", order)
		}
	}
	for order := range ids {
		if !orders[order] {
			t.Errorf("order %s was published and not committed", order)
		}
	}
	if s := stats(t, box); s.Dead != 0 {
		t.Errorf("%d rows are dead, want none", s.Dead)
	}
	if copies < kills/2 || copies > 2*kills*impatient().BatchSize { // a relay works on a batch and on the one that follows it
		t.Errorf("%d further copies after %d kills, want at least one for each kill after a publish and at most two batches for each kill", copies, kills)
	}
	t.Logf("%d orders, %d kills, %d further copies", len(orders), kills, copies)
}

// runAndKill starts the shop and kills it, between a publish and its mark or anywhere.
func runAndKill(t *testing.T, folder string, betweenPublishAndMark bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childFolder+"="+folder)
	if betweenPublishAndMark {
		cmd.Env = append(cmd.Env, childStops+"=1")
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	before := size(folder)
	if betweenPublishAndMark {
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("the shop ended by itself: %v", err)
		}
	} else {
		relaytest.Eventually(t, "the shop publishes", func() bool { return size(folder) > before })
		<-time.After(rand.N(50 * time.Millisecond))
	}
	cmd.Process.Kill()
	cmd.Wait()
	if complaint.Len() > 0 {
		t.Errorf("the shop said: %s", complaint.String())
	}
}

func size(folder string) int64 {
	info, err := os.Stat(filepath.Join(folder, "topic"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// published returns the message ID of each order in the topic, and how many lines there are beyond one an order.
func published(t *testing.T, folder string) (ids map[string]string, copies int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "topic"))
	if err != nil {
		t.Fatal(err)
	}
	ids = map[string]string{}
	for line := range strings.Lines(string(text)) {
		order, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch known, again := ids[order]; {
		case !again:
			ids[order] = id
		case known != id:
			t.Errorf("order %s was published with ID %s and with ID %s", order, known, id)
		default:
			copies++
		}
	}
	return ids, copies
}
