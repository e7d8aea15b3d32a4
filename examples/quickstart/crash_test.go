package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// TestCrash_BooksBalance kills the quickstart's process and its NATS server with SIGKILL at random. Then it starts them
// again on the same files. In the end no order is lost, and each double charge goes back to a process that was killed
// between its effect and its outcome. A finished record survives a kill. (e2e/faults kills Redis.)
func TestCrash_BooksBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts programs and kills them, for ten seconds and more")
	}
	kills, seed := 1, uint64(1) // of each
	if os.Getenv("ONCEMILL_PROOF") != "" {
		kills, seed = 12, uint64(time.Now().UnixNano())
	}
	t.Logf("%d kills of each of %v, seed %d", kills, programs, seed)
	c := &crashes{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(),
		orders:    kills * len(programs) * mostCharges * 3 / 2,
		processes: map[string]*testserver.Process{},
	}
	c.startAll()
	victims := map[string]int{}
	for _, name := range programs {
		victims[name] = kills
	}
	for len(victims) > 0 {
		c.awaitCharges(5 + c.rng.IntN(mostCharges-5))
		victim := c.pick(victims)
		c.kill(victim)
		if victims[victim]--; victims[victim] == 0 {
			delete(victims, victim)
		}
	}
	c.checkBooks(c.finish())
}

// programs are what is killed, in the order in which they start.
var programs = []string{"nats", "quickstart"}

// mostCharges is how many charges are made between two kills at most.
const mostCharges = 30

// crashes are processes that are killed, and what was done to them.
type crashes struct {
	t         *testing.T
	rng       *rand.Rand
	dir       string
	orders    int
	natsPort  int
	processes map[string]*testserver.Process
	db        *sql.DB // the quickstart's
	log       []crash
}

// A crash is one kill.
type crash struct {
	victim string
	pid    int
	at     int64 // µs
}

// startAll starts all programs.
func (c *crashes) startAll() {
	c.t.Helper()
	var err error
	if c.natsPort, err = testserver.FreePort(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		for _, p := range c.processes {
			p.Kill()
		}
	})
	for _, name := range programs {
		if err := os.Mkdir(filepath.Join(c.dir, name), 0o700); err != nil {
			c.t.Fatal(err)
		}
		c.start(name)
	}
	if c.db, err = sqliteoutbox.Open(c.t.Context(), filepath.Join(c.dir, "quickstart", "shop.db")); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.db.Close() })
}

// start starts a process on its own files, and waits until a server listens.
func (c *crashes) start(name string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, name)
	var p *testserver.Process
	var err error
	switch name {
	case "nats":
		p, err = testserver.StartProgram(dir, self(c.t), natsRole, strconv.Itoa(c.natsPort), dir)
		if err == nil {
			err = c.listening(p, c.natsPort)
		}
	case "quickstart":
		o := childOptions{Dir: dir, Orders: c.orders, NATS: fmt.Sprintf("nats://127.0.0.1:%d", c.natsPort)}
		var text []byte
		if text, err = json.Marshal(o); err == nil {
			p, err = testserver.StartProgram(dir, self(c.t), quickstartRole, string(text))
		}
	}
	if err != nil {
		c.t.Fatalf("start %s: %v\n%s", name, err, c.output(name))
	}
	c.processes[name] = p
}

func (c *crashes) listening(p *testserver.Process, port int) error {
	return shop.Poll(c.t.Context(), 5*time.Millisecond, func() (bool, error) {
		select {
		case <-p.Ended():
			return false, fmt.Errorf("it ended")
		default:
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
		if err == nil {
			return true, conn.Close()
		}
		return false, nil
	})
}

// awaitCharges waits until so many more charges were made by the guarded stack, so that kills hit work under way. A
// quickstart that ended because a server was away is started again.
func (c *crashes) awaitCharges(more int) {
	c.t.Helper()
	start := c.charges()
	err := shop.Poll(c.t.Context(), time.Millisecond, func() (bool, error) {
		select {
		case <-c.processes["quickstart"].Ended():
			if code := c.processes["quickstart"].ExitCode(); code == 0 {
				return false, fmt.Errorf("the quickstart finished before all kills were done: give it more orders")
			}
			c.start("quickstart")
		default:
		}
		return c.charges() >= start+more, nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// charges counts the charges of the guarded stack so far.
func (c *crashes) charges() (n int) {
	if err := c.db.QueryRow(`SELECT count(*) FROM ledger WHERE stack = ?`, guarded).Scan(&n); err != nil {
		return 0 // the quickstart has not made its tables yet
	}
	return n
}

func (c *crashes) pick(victims map[string]int) string {
	names := make([]string, 0, len(victims))
	for _, name := range programs {
		if victims[name] > 0 {
			names = append(names, name)
		}
	}
	return names[c.rng.IntN(len(names))]
}

func (c *crashes) kill(name string) {
	c.t.Helper()
	p := c.processes[name]
	if err := p.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.log = append(c.log, crash{victim: name, pid: p.Pid(), at: time.Now().UnixMicro()})
	c.t.Logf("killed %s (%d)", name, p.Pid())
	c.start(name)
}

// finish lets the quickstart end and returns its books.
func (c *crashes) finish() books {
	c.t.Helper()
	again := time.NewTicker(3 * time.Minute)
	defer again.Stop()
	for charged := c.charges(); ; {
		p := c.processes["quickstart"]
		select {
		case <-p.Ended():
		case <-again.C:
			if n := c.charges(); n > charged { // on a machine that is busy it takes longer
				charged = n
				continue
			}
			c.t.Fatalf("the quickstart does not come to rest\n%s", c.output("quickstart"))
		}
		var all report
		out := c.output("quickstart")
		if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 {
			if err := json.Unmarshal(out[i:], &all); err != nil {
				c.t.Fatalf("books: %v\n%s", err, out[i:])
			}
			return all[guarded]
		}
		c.start("quickstart") // a server was away when it started
	}
}

func (c *crashes) output(name string) []byte {
	out, err := os.ReadFile(filepath.Join(c.dir, name, "log"))
	if err != nil {
		c.t.Error(err)
	}
	return out
}

func (c *crashes) checkBooks(b books) {
	c.t.Helper()
	c.t.Logf("%d orders, %d deliveries, %d runs, %d duplicates, %d dead letters, %d double charges, %d lost orders",
		b.Orders, b.Deliveries, b.Runs, b.Duplicates, b.DeadLetters, b.DoubleCharges, b.LostOrders)
	if b.Orders != c.orders || b.LostOrders != 0 {
		c.t.Errorf("%d of %d orders lost", b.LostOrders, c.orders)
	}
	repeated := c.repeatedCharges()
	if len(repeated) != b.DoubleCharges {
		c.t.Errorf("%d charges were repeated, the books say %d", len(repeated), b.DoubleCharges)
	}
	for _, e := range repeated {
		if why := c.explain(e); why == "" {
			c.t.Errorf("%s was charged again, although its process (%d) was not killed between effect and outcome",
				e.order, e.pid)
		} else {
			c.t.Logf("%s was charged again: %s", e.order, why)
		}
	}
}

// An entry is a charge that was followed by another for the same order.
type entry struct {
	order   string
	pid     int
	at      int64 // µs
	settled bool
}

func (c *crashes) repeatedCharges() []entry {
	c.t.Helper()
	rows, err := c.db.Query(`
		SELECT l.order_id, l.pid, l.at, s.entry FROM ledger l LEFT JOIN settled s ON s.entry = l.entry
		WHERE l.stack = ? AND EXISTS (
			SELECT * FROM ledger n WHERE n.stack = l.stack AND n.order_id = l.order_id AND n.entry > l.entry)`, guarded)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	var all []entry
	for rows.Next() {
		var e entry
		var outcome sql.NullInt64
		if err := rows.Scan(&e.order, &e.pid, &e.at, &outcome); err != nil {
			c.t.Fatal(err)
		}
		e.settled = outcome.Valid
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// explain finds the kill between a charge and its outcome.
func (c *crashes) explain(e entry) string {
	for _, k := range c.log {
		since := time.Duration(k.at-e.at) * time.Microsecond
		if !e.settled && since >= 0 && k.victim == "quickstart" && k.pid == e.pid {
			return fmt.Sprintf("its process was killed %v after the charge, its outcome was not stored", since)
		}
	}
	return ""
}
