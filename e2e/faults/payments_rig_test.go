package faults_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// paymentsBooks is what examples/payments says in the end, of what the tests look at.
type paymentsBooks struct {
	Payments, Requests, Republished, Kills int
	Messages, Deliveries                   int // of payments: in the stream, to charge
	Charged, Declined                      int
	Receipts, ReceiptMore, Redelivered     int // different IDs, copies, further deliveries to notify
	Transfers, Calls                       int // of the API: done, and asked for
	Mistakes                               []string
}

// paymentsPatience bounds waits for the example: several processes on a machine that is busy.
const paymentsPatience = 5 * time.Minute

func untilPaid(t *testing.T, met func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(paymentsPatience); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for payments to come in", paymentsPatience)
		}
	}
}

// A paymentsRun is the example in a process of its own, which starts and kills others.
type paymentsRun struct {
	*testserver.Process
	t   *testing.T
	dir string
}

// buildPayments builds the example, without the race detector: its processes only do what they are told.
func buildPayments(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "payments")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program,
		"github.com/oncemill/oncemill/examples/payments")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	return program
}

func startPayments(t *testing.T, program string, args ...string) *paymentsRun {
	t.Helper()
	dir := t.TempDir()
	p, err := testserver.StartProgram(dir, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return &paymentsRun{p, t, dir}
}

// says is what the process wrote.
func (r *paymentsRun) says() string {
	b, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// mustRun fails the test if the process has ended.
func (r *paymentsRun) mustRun() {
	r.t.Helper()
	select {
	case <-r.Ended():
		r.t.Fatalf("the example has ended, with code %d\n%s", r.ExitCode(), r.says())
	default:
	}
}

// finish waits for the books. They must balance.
func (r *paymentsRun) finish(within time.Duration) (b paymentsBooks) {
	r.t.Helper()
	select {
	case <-r.Ended():
	case <-time.After(within):
		r.t.Fatalf("no books after %v\n%s", within, r.says())
	}
	if _, books, closed := strings.Cut(r.says(), "\n{"); closed {
		if err := json.NewDecoder(strings.NewReader("{" + books)).Decode(&b); err != nil {
			r.t.Fatal(err)
		}
	}
	if code := r.ExitCode(); code != 0 || b.Payments == 0 {
		r.t.Fatalf("the example ended with code %d and the books %+v\n%s", code, b, r.says())
	}
	r.t.Logf("%+v", b)
	return b
}

// mustBalance wants each payment to have its effects, each once, and all that can go wrong to have happened.
func (b paymentsBooks) mustBalance(t *testing.T, payments, kills int) {
	t.Helper()
	if len(b.Mistakes) > 0 {
		t.Errorf("the books do not balance: %+v", b)
	}
	if b.Payments != payments || b.Charged+b.Declined != payments || b.Receipts != b.Charged ||
		b.Transfers != b.Charged || b.Kills != kills {
		t.Errorf("%+v: want %d payments, %d kills, and as many receipts and transfers as charges", b, payments, kills)
	}
	if b.Requests <= payments || b.Republished == 0 || b.Messages <= payments || b.Deliveries <= b.Messages ||
		b.Redelivered <= b.ReceiptMore || b.Calls <= b.Transfers {
		t.Errorf("%+v: want duplicates of every kind", b)
	}
}
