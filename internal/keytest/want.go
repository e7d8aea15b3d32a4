package keytest

import (
	"testing"
	"time"
)

// Want fails the test unless an answer has a status, and is a replay or not.
func Want(t testing.TB, a Answer, status int, replayed bool) {
	t.Helper()
	if a.Err != nil {
		t.Fatalf("no answer: %v", a.Err)
	}
	if a.Status != status || a.Replayed() != replayed {
		t.Fatalf("answered %d, replayed %v, %s; want %d, replayed %v", a.Status, a.Replayed(), a.Body, status, replayed)
	}
}

// WantProblem fails the test unless an answer is a certain problem.
func WantProblem(t testing.TB, a Answer, status int, code string) {
	t.Helper()
	if a.Err != nil {
		t.Fatalf("no answer: %v", a.Err)
	}
	if a.Status != status || a.problem() != code {
		t.Fatalf("answered %d %q: %s; want %d %q", a.Status, a.problem(), a.Body, status, code)
	}
}

// Until waits for a condition.
func Until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// WantRuns compares how often handlers ran.
func WantRuns(t testing.TB, l *Ledger, n int) {
	t.Helper()
	if got := l.Total(); got != n {
		t.Errorf("%d runs, want %d", got, n)
	}
}
