package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/pace"
)

// What a copy of this test binary is told to do: on which file, as what, with how many messages.
const (
	childFile     = "ONCEMILL_TEST_SQLITESTORE_FILE"
	childRole     = "ONCEMILL_TEST_SQLITESTORE_ROLE"
	childMessages = "ONCEMILL_TEST_SQLITESTORE_MESSAGES"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := child(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// child does its role until it is done, is killed, or its standard input ends with the parent.
func child(file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	db, err := sql.Open("sqlite", "file:"+file+"?_busy_timeout=10000&_journal_mode=WAL&_txlock=immediate&_synchronous=NORMAL")
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := New(db, Config{})
	if err != nil {
		return err
	}
	var messages int
	if _, err := fmt.Sscan(os.Getenv(childMessages), &messages); err != nil {
		return err
	}
	switch os.Getenv(childRole) {
	case "claims":
		return claimAll(ctx, s, messages)
	case "commits":
		return commitAndStay(ctx, s)
	}
	return chargeAll(ctx, s, messages)
}

// claimAll claims every message once, in an order of its own, beside another process, and says how many it got.
func claimAll(ctx context.Context, s *Store, messages int) error {
	if err := awaitOther(ctx, s.db); err != nil {
		return err
	}
	got := 0
	for _, i := range rand.Perm(messages) {
		a, err := dedupstore.ClaimOne(ctx, s, request(fmt.Sprint(i)))
		switch {
		case err != nil:
			return err
		case a.Status == dedupstore.AcquiredRun:
			got++
		case a.Status != dedupstore.Busy:
			return fmt.Errorf("message %d was answered %s", i, a.Status)
		}
	}
	fmt.Println(got)
	return nil
}

// awaitOther waits until both processes are there, so that they claim at the same time.
func awaitOther(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := db.ExecContext(ctx, `INSERT INTO ready VALUES (?)`, os.Getpid()); err != nil {
		return fmt.Errorf("say that this process is ready: %w", err)
	}
	for ready := 0; ready < 2; {
		if !pace.Sleep(ctx, time.Millisecond) {
			return fmt.Errorf("wait for the other process: %w", ctx.Err())
		}
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM ready`).Scan(&ready); err != nil {
			return fmt.Errorf("wait for the other process: %w", err)
		}
	}
	return nil
}

// chargeAll charges every message in the inbox until each has an outcome.
func chargeAll(ctx context.Context, s *Store, messages int) error {
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
		Lease: 300 * time.Millisecond, MaxAttempts: 1000, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	for _, i := range rand.Perm(messages) {
		call := oncemill.Call{Key: request(fmt.Sprint(i)).Key, MaxWait: 10 * time.Second}
		for {
			_, err := guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
				if err := charge(ctx, Tx(ctx), call.Key.ID); err != nil {
					return dedupstore.Outcome{}, err
				}
				<-time.After(rand.N(3 * time.Millisecond)) // for the kill to come in between
				return dedupstore.Outcome{}, nil
			})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_, busy := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue)
			_, late := answertest.Is(err, oncemill.StatusLost) // the machine is busy
			if !busy && !late {
				return err
			}
		}
	}
	return nil
}

func command(t *testing.T, file, role string, messages int) (cmd *exec.Cmd, out *strings.Builder) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+file, childRole+"="+role, fmt.Sprintf("%s=%d", childMessages, messages))
	out = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

func TestStore_TwoProcessesGrantEachKeyOnce(t *testing.T) {
	t.Parallel()
	messages := 100
	if proof() {
		messages = 5000
	}
	file := filepath.Join(t.TempDir(), "shared.db")
	db := openAt(t, file)
	storeIn(t, db)
	mustExec(t, db, `CREATE TABLE ready (pid INTEGER)`)
	var commands []*exec.Cmd
	var outputs []*strings.Builder
	for range 2 {
		cmd, out := command(t, file, "claims", messages)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		commands, outputs = append(commands, cmd), append(outputs, out)
	}
	sum := 0
	for i, cmd := range commands {
		var got int
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, outputs[i])
		}
		if _, err := fmt.Sscan(outputs[i].String(), &got); err != nil {
			t.Fatalf("%v: %s", err, outputs[i])
		}
		t.Logf("process %d got %d of %d", i, got, messages)
		sum += got
	}
	if sum != messages {
		t.Errorf("%d grants of %d keys", sum, messages)
	}
}

func TestInbox_ProcessesKilledAgainAndAgainChargeEachMessageOnce(t *testing.T) {
	t.Parallel()
	kills, messages := 4, 60
	if proof() {
		kills, messages = 100, 3000
	}
	file := filepath.Join(t.TempDir(), "shared.db")
	db := openAt(t, file)
	s := storeIn(t, db)
	newLedger(t, db)
	children := make([]*exec.Cmd, 2)
	outputs := make([]*strings.Builder, 2)
	start := func(i int) {
		children[i], outputs[i] = command(t, file, "charges", messages)
		if err := children[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	start(0)
	start(1)
	total := func() int { return count(t, db, `SELECT count(*) FROM ledger`) }
	hit := 0
	for k := range kills {
		want := min(total()+1+rand.IntN(2*messages/(3*kills)+1), messages)
		eventually(t, fmt.Sprintf("%d charges", want), func() bool { return total() >= want })
		_ = children[k%2].Process.Kill()
		if children[k%2].Wait() != nil {
			hit++
		}
		start(k % 2)
	}
	for i, cmd := range children {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, outputs[i])
		}
	}
	if n, ids := total(), count(t, db, `SELECT count(DISTINCT id) FROM ledger`); n != messages || ids != messages {
		t.Errorf("%d charges of %d messages, want %d of each", n, ids, messages)
	}
	if n := count(t, db, `SELECT count(*) FROM oncemill_dedup WHERE state = 'done' AND kind = 'succeeded'`); n != messages {
		t.Errorf("%d outcomes, want %d", n, messages)
	}
	claim(t, s, request("0"), dedupstore.Done)
	t.Logf("%d messages, %d kills, %d of them of a process at work", messages, kills, hit)
}
