package main

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

func TestMain(m *testing.M) {
	if text, is := os.LookupEnv(childEnv); is {
		os.Exit(child(context.Background(), text))
	}
	goleak.VerifyTestMain(m)
}

func books(t *testing.T, mistake string, args ...string) (b Books, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = run(t.Context(), args, &stdout, &stderr, mistake, func(closed Books) { b = closed })
	if b.Tickets == 0 || !strings.Contains(stdout.String(), "double") {
		t.Fatalf("no books\n%s%s", &stdout, &stderr)
	}
	return b, status
}

func TestRefunds_EachPartIsPaidBackOnce(t *testing.T) {
	t.Parallel()
	tickets := 8
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		tickets = 1000
	}
	b, status := books(t, "", "-tickets", strconv.Itoa(tickets))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v; want 0 and balanced books", status, b)
	}
	if n := tickets / kinds; b.Deaths != n || b.Again < n || b.Calls < 2*tickets-n || b.Repeated == 0 {
		t.Errorf("%+v; want everything to have happened", b)
	}
	t.Logf("%v", b)
}

func TestRefunds_NightLongerThanTheAttemptsLosesNothing(t *testing.T) {
	t.Parallel()
	night := plan(kinds)[atNight]
	tool, closing, err := openTool(t.Context(), t.TempDir(), "", orders([]ticket{night}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closing(); err != nil {
			t.Error(err)
		}
	}()
	o := &office{tool: tool}
	for range tool.guard.Policy().MaxAttempts + 2 {
		a, err := o.once(t.Context(), night, 0)
		if err != nil || a.Again == 0 {
			t.Fatalf("%+v, %v; want to be told to come again", a, err)
		}
		if err := shop.Pause(t.Context(), a.Again); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := tool.refund(t.Context(), night.call(0)); err != nil || a.Again == 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := tool.refund(t.Context(), night.call(0)); err != nil || a.Again == 0 || strings.Contains(a.Says, "another agent") {
		t.Errorf("%+v, %v; want to be told that it is too early", a, err)
	}
	tool.bank.open.Store(true)
	if err := o.morning(t.Context(), night); err != nil {
		t.Error(err)
	}
	paid, _, err := tool.bank.payments(t.Context())
	for _, p := range night.Parts {
		if got := paid[night.Order+" "+p.Part]; err != nil || len(got) != 1 || got[0] != p.Cents {
			t.Errorf("%s: paid %v, %v; want %d once", p.Part, got, err, p.Cents)
		}
	}
}

func TestRefunds_MistakesShowInTheBooks(t *testing.T) {
	t.Parallel()
	for _, mistake := range []string{reasonInKey, agentInKey, keyOfRun} {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			if b, status := books(t, mistake, "-tickets", "4"); status != 1 || b.Double == 0 {
				t.Errorf("status %d, %+v; want 1 and double payments", status, b)
			}
		})
	}
}

func TestRefunds_WrongFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-tickets is 3": {"-tickets", "3"}, "unexpected argument \"x\"": {"x"}, "-nothing": {"-nothing"},
	} {
		var stderr bytes.Buffer
		if status := run(t.Context(), args, &bytes.Buffer{}, &stderr, "", nil); status != 2 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%v: status %d, %s", args, status, &stderr)
		}
	}
}
