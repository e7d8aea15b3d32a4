package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBooks_BalanceInOrdersAndInMoney(t *testing.T) {
	t.Parallel()
	o := order{ID: "1", Amount: 500}
	for name, tc := range map[string]struct {
		charged charged
		dead    bool
		want    books
		ok      bool
	}{
		"charged once":             {charged{1, 500, 500, 500}, false, books{CentsDue: 500, CentsCharged: 500}, true},
		"dead-lettered":            {charged{}, true, books{}, true},
		"a copy was dead-lettered": {charged{1, 500, 500, 500}, true, books{CentsDue: 500, CentsCharged: 500}, true},
		"lost":                     {charged{}, false, books{LostOrders: 1, CentsDue: 500}, false},
		"charged twice":            {charged{2, 1000, 500, 500}, false, books{DoubleCharges: 1, CentsDue: 500, CentsCharged: 1000}, false},
		"another amount":           {charged{1, 501, 501, 501}, false, books{WrongAmounts: 1, CentsDue: 500, CentsCharged: 501}, false},
		"two halves":               {charged{2, 500, 200, 300}, false, books{DoubleCharges: 1, WrongAmounts: 1, CentsDue: 500, CentsCharged: 500}, false},
	} {
		var b books
		b.add(o, tc.charged, tc.dead)
		if got, want := b.verdict(), tc.want.verdict(); got != want || b.balance() != tc.ok {
			t.Errorf("%s: %s (balances: %v), want %s (%v)", name, got, b.balance(), want, tc.ok)
		}
	}
	// Amounts that cancel out between orders.
	var b books
	b.add(o, charged{1, 400, 400, 400}, false)
	b.add(o, charged{1, 600, 600, 600}, false)
	if b.CentsCharged != b.CentsDue || b.balance() {
		t.Errorf("%+v balances: %v, want it not to", b, b.balance())
	}
}

func TestTable_SaysWhatIsCountedSinceThisStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	for _, resumed := range []bool{false, true} {
		o, err := parseFlags([]string{"-orders", "10", "-dir", dir}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var stdout bytes.Buffer
		if balanced, err := run(t.Context(), o, &stdout, io.Discard); err != nil || !balanced {
			t.Fatalf("%v\n%s", err, &stdout)
		}
		if says := strings.Contains(stdout.String(), "count since this start"); says != resumed {
			t.Errorf("says what is counted since this start: %v, want %v\n%s", says, resumed, &stdout)
		}
	}
}

func TestStack_StopEndsWhatCouldNotBeStarted(t *testing.T) {
	t.Parallel()
	o, err := parseFlags([]string{"-orders", "10", "-dir", t.TempDir()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	away := *d.broker
	away.url = "nats://127.0.0.1:1"
	for what, tc := range map[string]struct {
		broker *broker
		names  names
	}{
		"no connection": {&away, d.shop.names},
		"no stream":     {d.broker, names{run: "unknown"}},
	} {
		for _, name := range []string{guarded, unguarded} {
			s := &stack{name: name, names: tc.names, shop: d.shop, telemetry: d.telemetry}
			if err := s.start(t.Context(), tc.broker, d.store.Store, d.publisher); err == nil {
				t.Errorf("%s, %s: it started", what, name)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- s.stop(t.Context()) }()
			select {
			case err := <-stopped:
				if err != nil {
					t.Errorf("%s, %s: stop: %v", what, name, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s, %s: stop hangs", what, name)
			}
		}
	}
}

func TestFlags_CredentialsAreNotShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"http://user:s3cret@127.0.0.1:4222", "user:s3cret@127.0.0.1:4222", "s3cret@127.0.0.1:4222", "nats://user:s3cret/x@127.0.0.1", "http://s3cret@127.0.0.1",
		"nats://user:s3cret@h:%zz", "s3cret:x",
	} {
		for _, name := range []string{"-nats", "-redis"} {
			_, err := parseFlags([]string{name, url}, io.Discard)
			if err == nil || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s %s: %v, want an error without credentials", name, url, err)
			}
		}
	}
	for url, want := range map[string]string{
		"nats://s3cret@127.0.0.1:4222":      "nats://127.0.0.1:4222",
		"nats://a@h1:1,nats://s3cret@h2:22": "nats://h1:1,nats:",
	} {
		if got := redacted(url); got != want {
			t.Errorf("%s is shown, want %s", got, want)
		}
	}
	o, err := parseFlags([]string{"-nats", "nats://user:s3cret@127.0.0.1:1", "-dir", t.TempDir()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), o, io.Discard, io.Discard); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "nats://127.0.0.1:1") {
		t.Errorf("%v, want an error that names the server without credentials", err)
	}
}
