package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// TestMain is the service in processes that the tests start.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-postgres") {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// full is a count of a proof, or of a normal run.
func full(proof, normal int) int {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return proof
	}
	return normal
}

// A rig is what a service stands on, and the service's process.
type rig struct {
	*testserver.Process
	t             *testing.T
	args          []string
	orders, admin string // URLs
	db            *pgxpool.Pool
	js            jetstream.JetStream
	bank          *bank.Stub
	client        http.Client

	mu      sync.Mutex
	answers map[string]string // by key
	placed  atomic.Int64
	posts   atomic.Int64
}

// start starts a service, with a bank that loses one in so many answers.
func start(t *testing.T, loses int, args ...string) *rig {
	t.Helper()
	database, broker := postgrestest.Shared(t).NewDatabase(t), natstest.Start(t)
	r := &rig{t: t, db: database.Pool(t), js: broker.JetStream(), bank: bank.NewStub(loses)}
	r.answers = map[string]string{}
	api := httptest.NewServer(r.bank)
	t.Cleanup(api.Close)
	public, err1 := testserver.FreePort()
	admin, err2 := testserver.FreePort()
	if err := cmp.Or(err1, err2); err != nil {
		t.Fatal(err)
	}
	r.orders, r.admin = "http://"+testserver.Loopback(public)+"/orders", "http://"+testserver.Loopback(admin)
	r.client.Transport = &http.Transport{MaxIdleConnsPerHost: clients}
	t.Cleanup(r.client.CloseIdleConnections)
	r.args = append([]string{
		"-listen", testserver.Loopback(public), "-admin", testserver.Loopback(admin), "-bank", api.URL,
		"-postgres", database.DSN(), "-nats", broker.URL(), "-lease", "1500ms",
	}, args...)
	r.run()
	t.Cleanup(func() { r.Kill() })
	return r
}

// run starts the process, and waits until it is ready.
func (r *rig) run() {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	if r.Process, err = testserver.StartProgram(r.t.TempDir(), self, r.args...); err != nil {
		r.t.Fatal(err)
	}
	r.until("the service to be ready", func() bool { status, _ := r.get("/readyz"); return status == http.StatusOK })
}

// until waits.
func (r *rig) until(what string, met func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	if err := shop.Poll(ctx, 10*time.Millisecond, func() (bool, error) { return met(), nil }); err != nil {
		r.t.Fatalf("waited too long for %s\n%s", what, r.Output())
	}
}

// get asks at the internal address. Status 0: nobody answers.
func (r *rig) get(path string) (status int, text string) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.admin+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.do(request)
}

func (r *rig) do(request *http.Request) (status int, text string) {
	response, err := r.client.Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// post is a client that repeats an order until it is taken. Each answer must be that of the first request.
func (r *rig) post(ctx context.Context, key string, cents int) error {
	body := fmt.Appendf(nil, `{"customer":"ann","cents":%d}`, cents)
	return shop.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.orders, bytes.NewReader(body))
		if err != nil {
			return false, err
		}
		request.Header.Set("Idempotency-Key", key)
		r.posts.Add(1)
		switch status, text := r.do(request); {
		case status == http.StatusCreated:
			r.mu.Lock()
			defer r.mu.Unlock()
			if before := r.answers[key]; before != "" && before != text {
				return false, fmt.Errorf("%s was answered with %s, and then with %s", key, before, text)
			}
			r.answers[key] = text
			return true, nil
		case status != 0 && status != http.StatusConflict && status < http.StatusInternalServerError:
			return false, fmt.Errorf("%s: %d %s", key, status, text)
		}
		return false, nil
	})
}

// clients are at work at once.
const clients = 8

// place places orders: one in three is posted twice at once, another one again later.
func (r *rig) place(orders int) {
	err := shop.Each(r.t.Context(), orders, clients, func(ctx context.Context, n int) error {
		key, times := fmt.Sprintf("key-%d", n), 1
		if n%3 == 0 {
			times = 2
		}
		err := shop.Each(ctx, times, times, func(ctx context.Context, _ int) error { return r.post(ctx, key, 100+n) })
		if err == nil && n%3 == 1 {
			err = r.post(ctx, key, 100+n)
		}
		r.placed.Add(1)
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
}

// audit waits until all is done, and compares what is there with the answers.
func (r *rig) audit(orders int) {
	t, ctx := r.t, r.t.Context()
	t.Helper()
	box, err := pgoutbox.New(r.db, pgoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := shop.Settled(ctx, box, r.js, "SHOP", "charge", "transfer"); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{} // each order once
	for key, answer := range r.answers {
		var o order
		if err := json.Unmarshal([]byte(answer), &o); err != nil {
			t.Errorf("%s was answered with %q", key, answer)
		}
		want[o.ID]++
	}
	transfers, calls := r.bank.Counts()
	receipts := map[string]int{} // by order; a copy of a message is not another receipt
	messages, err := shop.Messages(ctx, r.js, "SHOP", charged)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range messages {
		var o order
		if id := m.Headers().Get(producer.HeaderID); !seen[id] && json.Unmarshal(m.Data(), &o) == nil {
			seen[id] = true
			receipts[o.ID]++
		}
	}
	charges := r.rows(`SELECT "order" FROM charges`)
	for what, got := range map[string]map[string]int{
		"orders": r.rows(`SELECT id FROM orders`), "charges": charges, "receipts": receipts, "transfers": transfers,
	} {
		if !maps.Equal(got, want) {
			t.Errorf("there are %s of %d orders, which differ from the answers of %d", what, len(got), len(want))
		}
	}
	if len(want) != orders {
		t.Errorf("%d orders were taken, want %d", len(want), orders)
	}
	t.Logf("%d orders by %d POSTs: %d charges, %d receipts, %d transfers by %d calls of the bank",
		len(want), r.posts.Load(), len(charges), len(seen), len(transfers), calls)
}

// rows counts the values of a query.
func (r *rig) rows(query string) map[string]int {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), query)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			r.t.Fatal(err)
		}
		found[value]++
	}
	if err := rows.Err(); err != nil {
		r.t.Fatal(err)
	}
	return found
}

func TestService_KilledItChargesEachOrderOnce(t *testing.T) {
	t.Parallel()
	orders, kills := full(10_000, 200), full(5, 2)
	r := start(t, 10)
	var placing sync.WaitGroup
	placing.Go(func() { r.place(orders) })
	for n := range kills { // spread over the orders
		at := int64(orders*n/kills + 1 + rand.IntN(orders/kills/2))
		r.until("orders", func() bool { return t.Failed() || r.placed.Load() >= at })
		r.Kill()
		r.run()
	}
	placing.Wait()
	r.audit(orders)
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `oncemill_claims_total{`) {
		t.Errorf("no claims are counted:\n%s", metrics)
	}
	if status, page := r.get("/console/"); status != http.StatusOK || !strings.Contains(page, "<html") {
		t.Errorf("the console is %d %s", status, page)
	}
}

// The bank is called once for each order, and the numbers of orders and charges have no gaps: no run was cut off or
// repeated.
func TestService_StopsUnderLoadInOrderAndRunsNothingAgain(t *testing.T) {
	t.Parallel()
	orders, stops := full(3000, 200), full(5, 1)
	r := start(t, 0, "-lease", "30s") // a machine that stands still for a moment is to end no lease
	var placing sync.WaitGroup
	placing.Go(func() { r.place(orders) })
	for n := range stops {
		r.until("orders", func() bool { return t.Failed() || r.placed.Load() >= int64(orders*(n+1)/(stops+1)) })
		began := time.Now()
		err := r.Stop()
		took := time.Since(began)
		const grace = 30 * time.Second // of Kubernetes, before it kills
		if err != nil || r.ExitCode() != 0 || took > grace {
			t.Errorf("stopped after %v with status %d, %v\n%s", took, r.ExitCode(), err, r.Output())
		}
		t.Logf("SIGTERM after %d orders: stopped after %v", r.placed.Load(), took)
		var order []string
		for line := range strings.Lines(r.Output()) {
			if _, part, is := strings.Cut(strings.TrimSpace(line), "stopped part="); is {
				order = append(order, part)
			}
		}
		want := []string{"orders", "charge", "transfer", "relay", "cleaning", "console", "admin"}
		if !slices.Equal(order, want) {
			t.Errorf("stopped %q, want %q", order, want)
		}
		r.run()
	}
	placing.Wait()
	r.audit(orders)
	if transfers, calls := r.bank.Counts(); calls != len(transfers) {
		t.Errorf("the bank was called %d times for %d transfers", calls, len(transfers))
	}
	for gaps := range r.rows(`SELECT (max(number) - count(*))::text FROM orders
		UNION ALL SELECT (max(number) - count(*))::text FROM charges`) {
		if gaps != "0" {
			t.Errorf("%s numbers are missing", gaps)
		}
	}
}

func TestService_ItsPageShowsItsCode(t *testing.T) {
	t.Parallel()
	page, err1 := os.ReadFile("../../docs/production.md")
	code, err2 := os.ReadFile("main.go")
	if err := cmp.Or(err1, err2); err != nil {
		t.Fatal(err)
	}
	_, snippet, _ := strings.Cut(string(page), "```go\n")
	snippet, _, _ = strings.Cut(snippet, "```")
	if snippet == "" || !strings.Contains(strings.ReplaceAll(string(code), "\n\t", "\n"), snippet) {
		t.Errorf("main.go does not have\n%s", snippet)
	}
}
