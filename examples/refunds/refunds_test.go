package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
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
	status = run(t.Context(), append(args, "-out", "json"), &stdout, &stderr, mistake)
	if err := json.Unmarshal(stdout.Bytes(), &b); err != nil {
		t.Fatalf("%v\n%s%s", err, &stdout, &stderr)
	}
	return b, status
}

func TestRefunds_EachPartIsPaidBackOnce(t *testing.T) {
	t.Parallel()
	tickets := "24"
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		tickets = "1000"
	}
	b, status := books(t, "", "-tickets", tickets)
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v; want 0 and balanced books", status, b)
	}
	if b.Deaths < 6 || b.Refused < 6 || b.Later < 6 || b.Calls < 2*24 || b.Requests-b.Refused <= b.Payments {
		t.Errorf("%+v; want everything to have happened", b)
	}
	t.Logf("%v", b)
}

func TestRefunds_MistakesShowInTheBooks(t *testing.T) {
	t.Parallel()
	for _, mistake := range []string{"reason in key", "agent in key", "key of run"} {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			if b, status := books(t, mistake, "-tickets", "8"); status != 1 || b.Double == 0 {
				t.Errorf("status %d, %+v; want 1 and double payments", status, b)
			}
		})
	}
}

func TestRefunds_WrongFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-tickets is 3": {"-tickets", "3"}, "-out is \"xml\"": {"-out", "xml"}, "\"x\" is not a flag": {"x"}, "-nothing": {"-nothing"},
	} {
		var stderr bytes.Buffer
		if status := run(t.Context(), args, &bytes.Buffer{}, &stderr, ""); status != 2 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%v: status %d, %s", args, status, &stderr)
		}
	}
}
