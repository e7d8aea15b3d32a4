package faults_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A soakShop is a pair of a soak: its servers, its processes and its books.
type soakShop struct {
	*soak
	*ledger.Ledger // of orders whose books are open
	name           string
	pair           soakPair
	task           soakTask
	dir            string
	faults         []soakFault // of servers
	proxies        []*lossy

	// What the world has.
	inspector dedupstore.Inspector
	db        *sql.DB          // effects are rows of it; nil: they are in journals
	box       outbox.Inspector // nil: there is none
	drained   func() bool      // the broker has nothing left to give
	revive    func()           // starts a broker again that came back and serves nobody; nil: none does so
	copies    func() []string  // the receipts that relays published

	stood atomic.Int64 // when the pair last stood still, in Unix nanoseconds

	reading sync.Mutex // held while journals are read

	mu     sync.Mutex
	asked  int // orders
	open   []openOrder
	closed ledger.Books
	sent   ledger.Books         // of relays
	read   map[string]int64     // how far journals of producers and operators were read
	forgot map[string]time.Time // orders that an operator let run again
	last   soakForgot           // what an operator was about to do, and may have been refused
	relays []ledger.Event
	ended  []string // journals of processes that have ended
	counts map[string]int
}

// An openOrder is an order whose books are open.
type openOrder struct {
	id string
	at time.Time // when something of it last happened, as far as the books know
}

// A soakFault is what is done to a server. It returns when that is over.
type soakFault struct {
	kind   string
	weight int
	broker bool // it leaves the store alone
	do     func()
}

// lossy is the way to a server. It passes all, or now and then breaks a connection instead of passing an answer, or
// delays one.
type lossy struct {
	testserver.Bridge
	broker         bool         // it leads there; else to the store
	drops, delays  atomic.Int32 // one in so many answers; 0: none
	dropped, later atomic.Int64
}

func (s *soakShop) proxy(target string, broker bool) string {
	p := &lossy{broker: broker}
	p.Start(s.T, target, func(client, server net.Conn) {
		p.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, err := client.Read(buf)
				if err == nil {
					_, err = server.Write(buf[:n])
				}
				if err != nil {
					server.Close()
					return
				}
			}
		})
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			switch {
			case err != nil:
			case oneIn(p.drops.Load()):
				p.dropped.Add(1)
				return
			case oneIn(p.delays.Load()):
				p.later.Add(1)
				p.Sleep(randomly(300 * time.Millisecond))
			}
			if err == nil {
				_, err = client.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
	s.proxies = append(s.proxies, p)
	return p.Addr
}

// kills are the faults of a server that the rig has started.
func (s *soakShop) kills(name string, o *testserver.Owned, broker bool) []soakFault {
	const away = 2 * time.Second
	return []soakFault{
		{name + " killed", 2, broker, func() {
			crash := ledger.Event{Why: ledger.LeaseCrashed, From: time.Now()}
			o.Kill()
			crash.To = time.Now()
			if !broker {
				s.relayHappened(crash)
			}
			lasts(randomly(away))
			o.Restart()
		}},
		{name + " stopped", 2, broker, func() {
			if err := o.Process().Pause(); err != nil {
				s.Error(err)
			}
			lasts(randomly(away))
			if err := o.Process().Resume(); err != nil {
				s.Error(err)
			}
		}},
	}
}

// onNATS starts a NATS server, a process of its own, with the streams of a pair.
func (s *soakShop) onNATS() jetstream.JetStream {
	cluster := natstest.StartDivisibleCluster(s.T, 1, s.natsServer)
	s.task.NATS = "nats://" + s.proxy(strings.TrimPrefix(cluster.URLs()[0], "nats://"), true)
	js := cluster.JetStream()
	for _, name := range []string{ordersStream, s.task.letters(), s.task.receipts()} {
		createStream(s.T, js, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Duplicates: 100 * time.Millisecond, MaxAge: 12 * time.Hour,
		})
	}
	natstest.Ask(s.T, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return js.CreateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
			Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 6 * time.Second,
		})
	})
	s.faults = append(s.faults, soakFault{"NATS killed", 2, true, func() {
		cluster.Kill(0)
		lasts(randomly(2 * time.Second))
		cluster.Restart(0)
	}}, soakFault{"NATS stopped", 2, true, func() {
		resume := cluster.Pause(0)
		lasts(randomly(3 * time.Second))
		resume()
	}})
	s.drained = func() bool {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		defer cancel()
		cons, err := js.Consumer(ctx, ordersStream, consumerName)
		if err != nil {
			return false
		}
		i := cons.CachedInfo()
		return i.NumPending == 0 && i.NumAckPending == 0
	}
	s.copies = func() []string { return headersIn(s.T, js, s.task.receipts(), producer.HeaderID) }
	return js
}

func soakOnRedis(s *soakShop) {
	s.onNATS()
	server := redistest.Start(s.T, "--appendonly", "yes", "--appendfsync", "always", "--dir", s.TempDir())
	s.task.Redis = s.proxy(server.Addr, false)
	rdb := redis.NewClient(server.Options())
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		store.Close()
		rdb.Close()
	})
	s.inspector = store
	memory := func(limit string) {
		if err := rdb.ConfigSet(s.Context(), "maxmemory", limit).Err(); err != nil {
			s.note("could not set maxmemory: %v", err)
		}
	}
	s.faults = append(s.faults, s.kills("Redis", server.Owned, false)...)
	s.faults = append(s.faults, soakFault{"Redis full", 2, false, func() {
		memory("1mb")
		lasts(randomly(4 * time.Second))
		memory("0")
	}})
}

// onSQL makes the tables of a pair. The number of an effect is of a type that counts by itself.
func (s *soakShop) onSQL(number string, migrate ...func(context.Context) error) {
	_, err := s.db.ExecContext(s.Context(), `CREATE TABLE effects (
		n `+number+` PRIMARY KEY, id VARCHAR(100) NOT NULL, pid INTEGER NOT NULL)`)
	if err == nil {
		_, err = s.db.ExecContext(s.Context(), `CREATE INDEX effects_by_id ON effects (id)`)
	}
	for _, f := range migrate {
		err = errors.Join(err, f(s.Context()))
	}
	if err != nil {
		s.Fatal(err)
	}
}

func soakOnPostgres(s *soakShop) {
	s.onNATS()
	server := postgrestest.Start(s.T, "max_connections=200")
	direct := server.DSN()
	pool, store, box, err := crashPool(context.Background(), direct, func(*pgxpool.Config) {})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(pool.Close)
	s.db = stdlib.OpenDBFromPool(pool)
	s.Cleanup(func() { s.db.Close() })
	s.onSQL("BIGSERIAL", store.Migrate, box.Migrate)
	host := pool.Config().ConnConfig
	at := net.JoinHostPort(host.Host, fmt.Sprint(host.Port))
	s.task.SQL = strings.Replace(direct, at, s.proxy(at, false), 1)
	s.inspector, s.box = store, box
	s.faults = append(s.faults, s.kills("PostgreSQL", server.Owned, false)...)
	s.faults = append(s.faults, soakFault{"backends of PostgreSQL ended", 6, false, func() {
		_, err := s.db.ExecContext(s.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.3`)
		if err != nil {
			s.note("end backends: %v", err)
		}
	}})
}

func soakOnMariaDB(s *soakShop) {
	server := mysqltest.Start(s.T, "--max-connections=300")
	database := server.NewDatabase(s.T)
	db, store, box, err := crashMariaDB(database.DSN(), func(*mysql.Config) {})
	if err != nil {
		s.Fatal(err)
	}
	s.db = db
	s.Cleanup(func() { s.db.Close() })
	s.onSQL("BIGINT AUTO_INCREMENT", store.Migrate, box.Migrate)
	s.task.SQL = strings.Replace(database.DSN(), server.Addr(), s.proxy(server.Addr(), false), 1)
	s.inspector, s.box = store, box
	s.faults = append(s.faults, s.kills("MariaDB", server.Owned, false)...)
	s.faults = append(s.faults, soakFault{"connections of MariaDB ended", 6, false, s.endConnections})

	broker := kafkatest.Start(s.T)
	k := kafka{addr: broker.Addr}
	s.task.Kafka, s.task.Topic = k.addr, "soak"
	adm := kadm.NewClient(k.client(s.T))
	for _, topic := range []string{s.task.Topic, s.task.letters(), s.task.receipts()} {
		k.createTopic(s.T, adm, topic, 6)
	}
	s.drained = func() bool {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		defer cancel()
		lags, err := adm.Lag(ctx, s.task.Topic)
		return err == nil && lags.Ok() && lags[s.task.Topic].Lag.Total() == 0
	}
	s.copies = func() []string {
		return kafkaHeaders(s.T, k, adm, s.task.receipts(), producer.HeaderID)
	}
	kafkaFaults := s.kills("Kafka", broker.Owned, true)
	kafkaFaults[0].weight = 1 // a start takes long
	s.faults = append(s.faults, kafkaFaults...)
	// A Kafka 4.3 that was killed may come back with a coordinator that serves no group before the next start.
	s.revive = func() {
		ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
		defer cancel()
		if groups, err := adm.DescribeGroups(ctx, s.task.Topic); err != nil || groups.Error() != nil {
			s.did(s.broken, "Kafka's coordinator stood still")
			kafkaFaults[0].do()
		}
	}
}

func (s *soakShop) endConnections() {
	rows, err := s.db.QueryContext(s.Context(), `SELECT id FROM information_schema.processlist
		WHERE id <> CONNECTION_ID() AND user = 'root' AND RAND() < 0.3`)
	if err != nil {
		s.note("end connections: %v", err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if rows.Scan(&id) == nil {
			_, _ = s.db.ExecContext(s.Context(), fmt.Sprint("KILL ", id)) // it may have ended
		}
	}
	_ = rows.Err()
}

// relayHappened tells the books of relays an event, which are closed in the end.
func (s *soakShop) relayHappened(e ledger.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relays = append(s.relays, e)
}

// count counts what happened.
func (s *soakShop) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// tailOf calls a function for each line that was added to a file.
func tailOf[T any](s *soakShop, name string, read func(T)) {
	file, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		s.Error(err)
		return
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, s.read[name], 1<<30))
	if err != nil {
		s.Error(err)
		return
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	s.read[name] += int64(whole)
	for line := range bytes.Lines(text[:whole]) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			s.Errorf("%s: %v: %s", name, err, line)
			continue
		}
		read(v)
	}
}

// book reads what processes have written, and closes the books of orders that are done.
func (s *soakShop) book(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tailOf(s, filepath.Join(s.dir, soakProducer+".asked"), func(a soakAsked) {
		for n := s.asked; n < a.To; n++ {
			id := soakID(s.name, n)
			s.open = append(s.open, openOrder{id, time.Now()})
			if s.pair.inbox {
				s.Want(id, "effect")
			} else {
				s.Ask(id)
			}
		}
		s.asked = max(s.asked, a.To)
	})
	tailOf(s, filepath.Join(s.dir, soakOperator+".forgot"), func(f soakForgot) {
		if f.Refused {
			s.counts["changes refused"]++
			s.last = soakForgot{}
			return
		}
		s.forgets()
		s.last = f
	})
	if time.Since(s.last.At) > closeAfter/2 {
		s.forgets()
	}
	s.readJournals()
	s.close(age)
}

// forgets tells the books what an operator did last.
func (s *soakShop) forgets() {
	f := s.last
	if s.last = (soakForgot{}); f.ID == "" {
		return
	}
	s.counts[map[bool]string{true: "failures run again", false: "successes forgotten"}[f.Failed]]++
	if !f.Failed || !s.pair.inbox { // a failure in an inbox has left nothing
		s.forgot[f.ID] = f.At
		s.Happened(ledger.Event{Why: ledger.Redriven, ID: f.ID, From: f.At, To: f.At.Add(time.Minute)})
	}
}

// readJournals reads what workers have written, and moves the journals of those that have ended out of the way.
func (s *soakShop) readJournals() {
	s.reading.Lock()
	defer s.reading.Unlock()
	ended := s.ended
	s.ended = nil
	if err := s.Read(s.dir); err != nil {
		s.Error(err)
	}
	old := filepath.Join(s.dir, "ended")
	for _, name := range ended {
		_ = os.Rename(name, filepath.Join(old, filepath.Base(name))) // it may have died before it wrote one
	}
	kept, err := os.ReadDir(old)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Error(err)
	}
	for _, f := range kept { // for the evidence
		if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > 5*time.Minute {
			_ = os.Remove(filepath.Join(old, f.Name()))
		}
	}
}

// mostClosed is how many orders are closed at a time.
const mostClosed = 2000

// close closes the books of orders that are done, if they and their runs are older than an age; at 0 all processes have
// ended. Others stay open.
func (s *soakShop) close(age time.Duration) {
	var some []string
	for _, o := range s.open {
		if (age == 0 || time.Since(o.at) >= age) && len(some) < mostClosed {
			some = append(some, o.id)
		}
	}
	if len(some) == 0 {
		return
	}
	done, err := s.done(some, age)
	if err != nil {
		s.note("%s: look at orders: %v", s.name, err) // its server is away on purpose
		return
	}
	s.readJournals() // an order may have been done since the last time
	var ids []string
	s.open = slices.DeleteFunc(s.open, func(o openOrder) bool { return done[o.id] })
	for _, id := range slices.Sorted(maps.Keys(done)) {
		if last := busyUntil(s.Message(id).Runs); age > 0 && time.Since(last) < age {
			s.open = append(s.open, openOrder{id, last})
		} else {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	if s.db != nil {
		found, err := s.effects(ids)
		if err != nil {
			s.note("%s: read effects: %v", s.name, err)
			s.open = append(s.open, orders(ids)...)
			return
		}
		for id, n := range found {
			for range n {
				s.Found(id, "effect")
			}
		}
	}
	s.Over(ids...)
	evidence := map[string]ledger.Account{}
	for _, id := range ids {
		evidence[id] = s.Message(id)
		s.takeovers(evidence[id].Runs)
	}
	b := s.Close(ids...)
	for _, f := range b.Faults {
		s.unexplained(f, evidence[f.ID])
	}
	s.closed.Add(b)
}

// busyUntil is when a run may still have been at work. The outcome may be another's: one whose process was stopped goes
// on after its lease, and has its effect then.
func busyUntil(runs []ledger.Run) (last time.Time) {
	for _, r := range runs {
		for _, t := range []time.Time{r.Granted, r.Until, r.Effect} {
			if t.After(last) {
				last = t
			}
		}
	}
	return last
}

// takeovers measures how long it took until runs were taken over whose processes were killed.
func (s *soakShop) takeovers(runs []ledger.Run) {
	for i, run := range runs {
		s.soak.mu.Lock()
		at, killed := s.dead[run.PID]
		s.soak.mu.Unlock()
		if killed && run.End == "" && i+1 < len(runs) && runs[i+1].Granted.After(at) {
			s.recoveredFrom("(a run that was cut off is taken over)", runs[i+1].Granted.Sub(at))
		}
	}
}

func orders(ids []string) (all []openOrder) {
	for _, id := range ids {
		all = append(all, openOrder{id, time.Now()})
	}
	return all
}

// done says which orders have succeeded, or were forgotten after that and not delivered again although the pair worked.
func (s *soakShop) done(ids []string, age time.Duration) (map[string]bool, error) {
	done, stood := map[string]bool{}, time.Unix(0, s.stood.Load())
	for some := range slices.Chunk(ids, 500) {
		var keys []dedupstore.Key
		for _, id := range some {
			keys = append(keys, orderKey(id))
		}
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		records, err := s.inspector.Look(ctx, keys)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			switch {
			case rec.State == dedupstore.Finished && rec.Outcome.Kind == dedupstore.Succeeded,
				rec.State == dedupstore.Absent && time.Since(cmp.Or(s.forgot[rec.Key.ID], time.Now())) > age &&
					time.Since(stood) > age:
				done[rec.Key.ID] = true
			}
		}
	}
	return done, nil
}

// effects counts the effects of orders in the database.
func (s *soakShop) effects(ids []string) (map[string]int, error) {
	found := map[string]int{}
	for some := range slices.Chunk(ids, 500) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		rows, err := s.db.QueryContext(ctx,
			`SELECT id, count(*) FROM effects WHERE id IN ('`+strings.Join(some, `','`)+`') GROUP BY id`)
		if err == nil {
			err = scanCounts(rows, found)
		}
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func scanCounts(rows *sql.Rows, into map[string]int) error {
	defer rows.Close()
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return err
		}
		into[id] = n
	}
	return rows.Err()
}

// progress is how many effects there were, or so.
func (s *soakShop) progress() (int64, error) {
	if s.db == nil {
		s.reading.Lock()
		defer s.reading.Unlock()
		return int64(s.Done()), s.Read(s.dir)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	var n int64
	err := s.db.QueryRowContext(ctx, `SELECT COALESCE(MAX(n), 0) FROM effects`).Scan(&n)
	return n, err
}
