package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// startPart runs some roles in this process until the test ends, and returns where they listen.
func startPart(t *testing.T, args ...string) (address string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stdout, w := io.Pipe()
	var stderr bytes.Buffer
	var running sync.WaitGroup
	running.Go(func() {
		if status := (program{}).main(ctx, args, w, &stderr); status != 0 {
			t.Errorf("%v: status %d\n%s", args, status, &stderr)
		}
		_ = w.Close()
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatalf("%v: says nothing", args)
	}
	return strings.TrimPrefix(lines.Text(), "ready ")
}

func TestPayments_PartsRunByThemselves(t *testing.T) {
	t.Parallel()
	db, broker := testserver.SharedPostgres(t).NewDatabase(t), testserver.NATS(t)
	journal := filepath.Join(t.TempDir(), "journal")
	servers := []string{"-postgres", db.DSN(), "-nats", broker.URL(), "-redis", "", "-lease", "1s"}
	part := func(args ...string) string { return startPart(t, append(args, servers...)...) }
	api := part("-role", roleAPI, "-journal", journal)
	part("-role", "relay,charge,notify", "-api", "http://"+api)
	service := part("-role", roleService)

	for body, want := range map[string]int{
		`{"id":"4711","account":"ann","merchant":"bakery","cents":1200}`:  http.StatusCreated,
		`{"id":"4712","account":"ann","merchant":"ann","cents":1200}`:     http.StatusBadRequest,
		`{"id":"4712","account":"ann","merchant":"bakery","cents":0}`:     http.StatusBadRequest,
		`{"id":"47 12","account":"ann","merchant":"bakery","cents":1200}`: http.StatusBadRequest,
		`{`: http.StatusBadRequest,
	} {
		checkPost(t, service, body, want)
	}
	checkPost(t, service, `{"id":"4711","account":"ann","merchant":"bakery","cents":1200}`, http.StatusOK)
	checkPost(t, service, `{"id":"4711","account":"ann","merchant":"bakery","cents":1201}`, http.StatusConflict)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		calls, err := readJournal(journal)
		if err != nil {
			t.Fatal(err)
		}
		if len(calls) > 0 {
			if len(calls) != 1 || !calls[0].transfer || calls[0].body != `{"payment":"4711","cents":1200}` {
				t.Errorf("the API got %+v", calls)
			}
			return
		}
		if !pause(ctx, tick) {
			t.Fatal("the API was not called")
		}
	}
}

// The parts make their tables themselves, and nobody says which of them is to begin.
func TestPayments_PartsThatBeginTogetherMakeTheirTables(t *testing.T) {
	t.Parallel()
	dsn := testserver.SharedPostgres(t).NewDatabase(t).DSN()
	var parts sync.WaitGroup
	for range 8 {
		parts.Go(func() {
			db, err := openPostgres(t.Context(), options{postgres: dsn, run: "together"})
			if err != nil {
				t.Error(err)
				return
			}
			if err := db.close(t.Context(), false); err != nil {
				t.Error(err)
			}
		})
	}
	parts.Wait()
}

func checkPost(t *testing.T, address, body string, want int) {
	t.Helper()
	response, err := http.Post("http://"+address+"/payments", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		t.Errorf("%s: status %d, want %d", body, response.StatusCode, want)
	}
}
