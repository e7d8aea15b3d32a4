package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.yaml.in/yaml/v3"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// finds runs doctor, and returns its exit status and what it found.
func finds(t *testing.T, args ...string) (status int, found []health.Finding) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "none.yaml")
	if err := os.WriteFile(config, []byte("contexts: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	status = run(t.Context(), append([]string{"doctor", "-o", "json", "--config", config}, args...), nil, &out, &log)
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		t.Fatalf("%q: %v, and on stderr:\n%s", out.String(), err, &log)
	}
	return status, found
}

// wantOnly runs doctor, which must find this and nothing else. Want is a severity, a space, a part of the subject, ": "
// and a part of the finding.
func wantOnly(t *testing.T, want []string, args ...string) {
	t.Helper()
	status, found := finds(t, args...)
	ok := len(found) == len(want)
	for _, w := range want {
		severity, rest, _ := strings.Cut(w, " ")
		subject, text, _ := strings.Cut(rest, ": ")
		ok = ok && slices.ContainsFunc(found, func(f health.Finding) bool {
			return f.Severity == severity && strings.Contains(f.Subject, subject) && strings.Contains(f.Finding, text)
		})
	}
	if !ok {
		t.Errorf("found %q, want %q", found, want)
	}
	wantStatus := 0
	if slices.ContainsFunc(found, func(f health.Finding) bool { return f.Severity == health.Loses }) {
		wantStatus = exitFound
	}
	if status != wantStatus {
		t.Errorf("the exit status is %d, want %d", status, wantStatus)
	}
}

// compose is a service of compose.yaml.
func compose(t *testing.T, service string) (command []string) {
	t.Helper()
	text, err := os.ReadFile("../../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services[service].Command) < 2 {
		t.Fatalf("compose.yaml has no command of %s", service)
	}
	return file.Services[service].Command[1:]
}

func TestDoctor_NATSBucket(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), natskv.Bucket("oncemill", 1)); err != nil {
		t.Fatal(err)
	}
	at := strings.Replace(server.URL(), "nats://", "nats+kv://", 1)
	wantOnly(t, []string{"error store: the bucket has one replica"}, "--store", at)
	wantOnly(t, []string{`error store, bucket "none": is missing`}, "--store", at+"/none")
}

func TestDoctor_NATSStream(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream()
	good := natskv.Stream("ORDERS", 1, "orders.>")
	if _, err := js.CreateStream(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	unfit := natskv.Stream("MAILS", 1, "mails.>")
	unfit.AllowAtomicPublish = false
	if _, err := js.CreateStream(t.Context(), unfit); err != nil {
		t.Fatal(err)
	}
	at := strings.Replace(server.URL(), "nats://", "nats+kv://", 1)
	wantOnly(t, []string{"error store: the stream has one replica", "warning store: the stream has one replica in files"},
		"--store", at+"/ORDERS?subject=orders.once")
	wantOnly(t, []string{`error store, stream "MAILS": takes no atomic batches: set AllowAtomicPublish`},
		"--store", at+"/MAILS?subject=mails.once")
}

func TestDoctor_Redis(t *testing.T) {
	t.Parallel()
	good := compose(t, "redis")
	for name, c := range map[string]struct {
		args []string // after those of compose.yaml
		want []string
	}{
		"as in compose.yaml": {},
		"eviction": {[]string{"--maxmemory-policy", "allkeys-lru"},
			[]string{"error store: maxmemory-policy is"}},
		"no log":            {[]string{"--appendonly", "no"}, []string{"error store: appendonly is no"}},
		"log synced lazily": {[]string{"--appendfsync", "everysec"}, []string{"error store: appendfsync is everysec"}},
		"log not synced in rewrites": {[]string{"--no-appendfsync-on-rewrite", "yes"},
			[]string{"error store: no-appendfsync-on-rewrite is"}},
		"replica": {[]string{"--replicaof", "127.0.0.1", "1"}, []string{"error store, server: is a replica"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, append(slices.Clone(good), c.args...)...)
			wantOnly(t, c.want, "--store", "redis://"+server.Addr)
		})
	}
	t.Run("rights", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, good...)
		err := server.Client().ACLSetUser(t.Context(), "app", "on", ">pw", "~*", "+@all", "-psetex").Err()
		if err != nil {
			t.Fatal(err)
		}
		wantOnly(t, []string{"error store, server: refuses PSETEX"}, "--store", "redis://app:pw@"+server.Addr)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, append(slices.Clone(good), "--maxmemory", "20mb")...)
		at := "redis://" + server.Addr
		store, done, err := open(at)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		requests := make([]dedupstore.Request, 600) // in a minute: 864,000 a day
		for i := range requests {
			requests[i] = dedupstore.Request{
				Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint(i)},
				Owner: "owner-of-the-test-" + fmt.Sprint(i), Lease: window, Retention: window, MaxAttempts: 5,
			}
		}
		for _, r := range store.Claim(t.Context(), requests) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		wantOnly(t, []string{"warning store: maxmemory is 20.0 MiB: at the present rate"}, "--store", at)
		wantOnly(t, nil, "--store", at, "--window", "5m")
	})
}

func TestDoctor_SQLite(t *testing.T) {
	t.Parallel()
	fresh := func(t *testing.T, mode string) string {
		path := filepath.Join(t.TempDir(), "records.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode("+mode+")")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE business (n)"); err != nil {
			t.Fatal(err)
		}
		return "sqlite:" + path
	}
	at := fresh(t, "wal")
	wantOnly(t, []string{"error store, table: call Migrate", "error outbox: it has no table"},
		"--store", at, "--outbox", at)
	makeTables(t, at, at)
	wantOnly(t, nil, "--store", at, "--outbox", at)

	at = fresh(t, "delete")
	for range 2 { // the doctor leaves it as it is
		wantOnly(t, []string{`error store, journal_mode: is "delete"`}, "--store", at)
	}
}

func TestDoctor_MySQL(t *testing.T) {
	t.Parallel()
	at := mysqltest.Shared(t).NewDatabase(t).URL()
	wantOnly(t, []string{`error store, table "oncemill_dedup": or the one beside it is missing`,
		"error outbox: it has no table"}, "--store", at, "--outbox", at)
	makeTables(t, at, at)
	wantOnly(t, []string{"error store: innodb_flush_log_at_trx_commit is 2"}, "--store", at, "--outbox", at)
	at = mysqltest.Start(t, compose(t, "mysql")...).NewDatabase(t).URL()
	makeTables(t, at, at)
	wantOnly(t, nil, "--store", at, "--outbox", at)
}

// makeTables migrates.
func makeTables(t *testing.T, store, box string) {
	t.Helper()
	a := &app{settings: settings{servers: servers{Store: store, Outbox: box}}}
	defer a.close()
	if _, err := a.migrations(t.Context(), false, false, false); err != nil {
		t.Fatal(err)
	}
}

func TestDoctor_PostgreSQL(t *testing.T) {
	t.Parallel()
	if command := compose(t, "postgres"); !slices.Equal(command, []string{"-c", "wal_level=logical"}) {
		t.Fatalf("compose.yaml starts postgres with %q: start the server of this test so", command)
	}
	server := postgrestest.Start(t, "wal_level=logical", "fsync=on", "max_slot_wal_keep_size=64MB")
	for name, c := range map[string]struct {
		plant []string
		want  []string
		user  string // empty: the owner
	}{
		"as in compose.yaml": {},
		"older schema": {
			plant: []string{`UPDATE oncemill_dedup_settings SET version = version - 1`},
			want:  []string{`error store, table "oncemill_dedup": has schema version`},
		},
		"missing tables": {
			plant: []string{`DROP TABLE oncemill_dedup_settings, oncemill_outbox, oncemill_outbox_settings`},
			want:  []string{"error store, table: call Migrate", "error outbox: it has no table"},
		},
		"records that a crash empties": {
			plant: []string{`ALTER TABLE oncemill_dedup SET UNLOGGED`},
			want:  []string{"error store: is UNLOGGED"},
		},
		"outbox that a crash empties": {
			plant: []string{`ALTER TABLE oncemill_outbox SET UNLOGGED`},
			want:  []string{"error outbox, table: it is UNLOGGED"},
		},
		"rights": {
			user: "clerk",
			plant: []string{`CREATE ROLE clerk LOGIN`,
				`GRANT SELECT, INSERT ON oncemill_dedup, oncemill_outbox TO clerk`,
				`GRANT SELECT, INSERT, UPDATE, DELETE ON oncemill_outbox_lease TO clerk`,
				`GRANT SELECT ON oncemill_outbox_settings TO clerk`},
			want: []string{"error store, table: may not be used by the database user: GRANT",
				"error outbox, table: GRANT UPDATE, DELETE ON"},
		},
		"hidden rows": {
			user: "guest",
			plant: []string{`CREATE ROLE guest LOGIN`, `GRANT ALL ON ALL TABLES IN SCHEMA public TO guest`,
				`ALTER TABLE oncemill_outbox ENABLE ROW LEVEL SECURITY`},
			want: []string{"error outbox, table: has row-level security"},
		},
		"slot that nobody reads": {
			plant: []string{`CREATE PUBLICATION oncemill_outbox FOR TABLE oncemill_outbox WITH (publish = 'insert')`,
				`SELECT pg_create_logical_replication_slot('oncemill_outbox', 'pgoutput')`,
				`SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000)) FROM generate_series(1, 40)`},
			want: []string{"warning replication slot oncemill_outbox: no relay reads it",
				"warning replication slot oncemill_outbox: beyond max_slot_wal_keep_size (64.0 MiB)"},
		},
		"another's slot": {
			plant: []string{`CREATE PUBLICATION others FOR TABLE oncemill_dedup`,
				`SELECT pg_create_logical_replication_slot('others', 'pgoutput')`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			database := server.NewDatabase(t)
			at := database.DSN()
			makeTables(t, at, at)
			pool := database.Pool(t)
			for _, statement := range c.plant {
				execute(t, pool, statement)
			}
			if c.user != "" {
				u, err := url.Parse(at)
				if err != nil {
					t.Fatal(err)
				}
				u.User = url.User(c.user)
				at = u.String()
			}
			wantOnly(t, c.want, "--store", at, "--outbox", at)
			if c.user != "" {
				execute(t, pool, "DROP OWNED BY "+c.user, "DROP ROLE "+c.user)
			}
			execute(t, pool, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
		})
	}
	t.Run("fsync", func(t *testing.T) {
		at := postgrestest.Shared(t).NewDatabase(t).DSN()
		box := at + "&skip_dead=true" // so it is ordered
		makeTables(t, at, box)
		wantOnly(t, []string{"error store: fsync is off", "error outbox: fsync is off"}, "--store", at, "--outbox", box)
	})
}

func execute(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := pool.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestSlot_Judge(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]slot{
		"it is lost":          {Status: "lost"},
		"its relay is behind": {Active: true, Status: "extended", Retained: 1 << 30, Most: -1},
	} {
		var r health.Report
		if s.judge(&r); len(r.Found) != 1 || !strings.Contains(r.Found[0].Finding, want) {
			t.Errorf("%+v: found %q, want %q", s, r.Found, want)
		}
	}
	var r health.Report
	if (slot{Active: true, Status: "reserved", Retained: 1 << 29, Most: -1}).judge(&r); len(r.Found) != 0 {
		t.Errorf("of a slot that is read: found %q", r.Found)
	}
}

// A stream, a consumer and dead letters as docs/brokers.md has them, on a single server.
func goodNATS() (stream, dead jetstream.StreamConfig, consumer jetstream.ConsumerConfig) {
	return jetstream.StreamConfig{
			Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage,
			MaxAge: 24 * time.Hour, Discard: jetstream.DiscardNew, MaxBytes: 10 << 20,
		},
		jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}, Storage: jetstream.FileStorage},
		jetstream.ConsumerConfig{
			Durable: "billing", FilterSubject: "orders.created", AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: 30 * time.Second, MaxDeliver: -1, MaxAckPending: 2048,
		}
}

func TestDoctor_NATS(t *testing.T) {
	t.Parallel()
	type configs struct {
		stream, dead *jetstream.StreamConfig
		consumer     *jetstream.ConsumerConfig
	}
	for name, c := range map[string]struct {
		plant func(configs)
		want  []string
		args  []string
		alone bool // the arguments are all there are, but for the address
	}{
		"as in docs/brokers.md": {},
		"memory": {plant: func(c configs) { c.stream.Storage = jetstream.MemoryStorage },
			want: []string{"error stream ORDERS: its Storage is memory"}},
		"kept for ever": {plant: func(c configs) { c.stream.MaxAge = 0 },
			want: []string{"error stream ORDERS: it keeps messages for ever"}},
		"kept for longer than a window": {args: []string{"--window", "12h"},
			want: []string{"error stream ORDERS: it keeps messages for 24h0m0s, and outcomes are remembered for " +
				"12h0m0s"}},
		"kept for less than the attempts": {plant: func(c configs) { c.stream.MaxAge = 5 * time.Minute },
			want: []string{"error stream ORDERS: 10 attempts take up to 8m31s"}},
		"discard": {plant: func(c configs) { c.stream.Discard = jetstream.DiscardOld },
			want: []string{"error stream ORDERS: its Discard is old"}},
		"limit of each subject": {plant: func(c configs) { c.stream.MaxMsgsPerSubject = 1 },
			want: []string{"error stream ORDERS: its MaxMsgsPerSubject is 1"}},
		"no acks": {plant: func(c configs) { c.stream.NoAck = true },
			want: []string{"error stream ORDERS: it has NoAck"}},
		"duplicate window": {plant: func(c configs) { c.stream.Duplicates = time.Second },
			want: []string{"warning stream ORDERS: its duplicate window is 1s"}},
		"interest of nobody": {alone: true, args: []string{"--stream", "DEAD"},
			plant: func(c configs) { c.dead.Retention = jetstream.InterestPolicy },
			want:  []string{"error stream DEAD: its Retention is interest"}},
		"acks of all": {plant: func(c configs) { c.consumer.AckPolicy = jetstream.AckAllPolicy },
			want: []string{"error consumer ORDERS/billing: its AckPolicy is"}},
		"ack wait": {plant: func(c configs) { c.consumer.AckWait = 5 * time.Second },
			want: []string{"warning consumer ORDERS/billing: its AckWait (or BackOff) is 5s"}},
		"deliveries": {plant: func(c configs) { c.consumer.MaxDeliver = 5 },
			want: []string{"error consumer ORDERS/billing: its MaxDeliver is 5, and a policy has 10 attempts"}},
		"enough deliveries": {plant: func(c configs) { c.consumer.MaxDeliver = 5 }, args: []string{"--attempts", "4"}},
		"pending": {plant: func(c configs) { c.consumer.MaxAckPending = 10 },
			want: []string{"warning consumer ORDERS/billing: its MaxAckPending is 10"}},
		"inactive": {plant: func(c configs) { c.consumer.InactiveThreshold = time.Hour },
			want: []string{"error consumer ORDERS/billing: its InactiveThreshold is 1h"}},
		"consumer in memory": {plant: func(c configs) { c.consumer.MemoryStorage = true },
			want: []string{"error consumer ORDERS/billing: it has MemoryStorage"}},
		"slow replay": {plant: func(c configs) { c.consumer.ReplayPolicy = jetstream.ReplayOriginalPolicy },
			want: []string{"error consumer ORDERS/billing: its ReplayPolicy is original"}},
		"headers only": {plant: func(c configs) { c.consumer.HeadersOnly = true },
			want: []string{"warning consumer ORDERS/billing: it has HeadersOnly"}},
		"small dead letters": {plant: func(c configs) { c.dead.MaxMsgSize = 1000 },
			want: []string{"warning dead letters dead.orders: stream DEAD takes messages of up to 1000 bytes"}},
		"dead letters that nobody wants": {plant: func(c configs) { c.dead.Retention = jetstream.InterestPolicy },
			want: []string{"error dead letters dead.orders: stream DEAD has Retention interest and no consumer"}},
		"dead letters without a stream": {args: []string{"--dead-letters", "gone.orders"},
			want: []string{"error dead letters gone.orders: no stream has the subject"}},
		"no consumer": {args: []string{"--consumer", "none"},
			want: []string{"error consumer ORDERS/none: it is missing"}},
		"no stream": {alone: true, args: []string{"--stream", "NONE", "--dead-letters", "dead.orders"},
			want: []string{"error stream NONE: it is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t)
			js := server.JetStream()
			stream, dead, consumer := goodNATS()
			if c.plant != nil {
				c.plant(configs{&stream, &dead, &consumer})
			}
			for _, s := range []jetstream.StreamConfig{stream, dead} {
				if _, err := js.CreateStream(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := js.CreateConsumer(t.Context(), "ORDERS", consumer); err != nil {
				t.Fatal(err)
			}
			args := []string{"--nats", server.URL()}
			if !c.alone {
				args = append(args, "--stream", "ORDERS", "--consumer", "billing", "--dead-letters", "dead.orders")
			}
			wantOnly(t, c.want, append(args, c.args...)...)
		})
	}
}

func TestDoctor_Kafka(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	brokers := strings.Join(cluster.ListenAddrs(), ",")
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	admin := kadm.NewClient(cl)
	day := "86400000"
	create := func(name string, replicas int16, setting string) {
		t.Helper()
		configs := map[string]*string{
			"retention.ms": &day, "min.insync.replicas": new("2"), "cleanup.policy": new("delete"),
		}
		key, value, _ := strings.Cut(setting, "=")
		configs[key] = &value
		if _, err := admin.CreateTopic(t.Context(), 1, replicas, configs, name); err != nil {
			t.Fatal(err)
		}
	}
	create("dead", 3, "retention.ms=-1")
	var committed kadm.Offsets
	committed.AddOffset("dead", 0, 0, -1)
	if err := admin.CommitAllOffsets(t.Context(), "billing", committed); err != nil {
		t.Fatal(err)
	}
	for retention, want := range map[string]string{
		"57600000":  "error topic dead-57600000: it deletes dead letters after 16h0m0s",
		"604800000": "warning topic dead-604800000: it deletes dead letters after 168h0m0s",
	} {
		create("dead-"+retention, 3, "retention.ms="+retention)
		create("of-"+retention, 3, "retention.ms="+day)
		wantOnly(t, []string{want}, "--kafka", brokers, "--topic", "of-"+retention, "--dead-letters", "dead-"+retention)
	}
	create("of-nobody", 3, "retention.ms="+day)
	wantOnly(t, []string{"warning group bilingual: there is no such group"}, "--kafka", brokers, "--topic", "of-nobody",
		"--group", "bilingual")
	for name, c := range map[string]struct {
		replicas int16
		setting  string
		want     string
	}{
		"good": {replicas: 3, setting: "retention.ms=" + day},
		"single": {replicas: 1, setting: "min.insync.replicas=1",
			want: "error topic single: its replication factor is 1"},
		"lonely": {replicas: 3, setting: "min.insync.replicas=1",
			want: "error topic lonely: its min.insync.replicas is 1"},
		"stiff": {replicas: 3, setting: "min.insync.replicas=3",
			want: "warning topic stiff: its min.insync.replicas is 3, all replicas"},
		"compacted": {replicas: 3, setting: "cleanup.policy=compact",
			want: "error topic compacted: its cleanup.policy is compact"},
		"long": {replicas: 3, setting: "retention.ms=604800000",
			want: "error topic long: it keeps records for 168h0m0s"},
		"ever": {replicas: 3, setting: "retention.ms=-1", want: "error topic ever: it keeps records for ever"},
		"short": {replicas: 3, setting: "retention.ms=60000",
			want: "error topic short: it keeps records for 1m0s (retention.ms), and 10 attempts"},
		"bounded": {replicas: 3, setting: "retention.bytes=1000000",
			want: "error topic bounded: its retention.bytes is"},
		"large": {replicas: 3, setting: "max.message.bytes=5000000",
			want: "warning topic dead: its max.message.bytes is 1048588, and that of large is 5000000"},
		"missing": {want: "error topic missing: it is missing"},
	} {
		if c.replicas > 0 {
			create(name, c.replicas, c.setting)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			wantOnly(t, want, "--kafka", brokers, "--topic", name, "--group", "billing", "--dead-letters", "dead")
		})
	}
}

// A topic as the examples make it, on a broker as in compose.yaml.
func TestDoctor_ABrokerOfOneNode(t *testing.T) {
	t.Parallel()
	server := kafkatest.Shared(t)
	admin := kadm.NewClient(server.Client())
	orders, dead := "orders-"+rand.Text(), "dead-"+rand.Text()
	server.CreateTopic(orders, 2)
	server.CreateTopic(dead, 1)
	set := func(name, value string) {
		t.Helper()
		_, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: &value}}, orders)
		if err != nil {
			t.Fatal(err)
		}
		for t.Context().Err() == nil { // a broker hears of it a moment later
			all, err := admin.DescribeTopicConfigs(t.Context(), orders)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(all[0].Configs, func(c kadm.Config) bool {
				return c.Key == name && c.MaybeValue() == value
			}) {
				return
			}
			testserver.Pause()
		}
	}
	set("retention.ms", "86400000")
	args := []string{"--kafka", server.Addr, "--topic", orders, "--group", "doctor", "--dead-letters", dead}
	alone := []string{
		"warning topic orders: its replication factor is 1, as there is one broker",
		"warning topic dead: its replication factor is 1", "warning topic dead: it deletes dead letters after 168h0m0s",
		"warning group doctor: there is no such group",
	}
	wantOnly(t, alone, args...)
	set("unclean.leader.election.enable", "true")
	wantOnly(t, append([]string{"error topic orders: its unclean.leader.election.enable is true"}, alone...), args...)
}

func TestClock(t *testing.T) {
	t.Parallel()
	before := time.Now()
	after := before.Add(5 * time.Second) // a slow answer
	for want, theirs := range map[string]time.Time{
		"":                        before.Add(-time.Second),
		"is 3m0s ahead of this":   after.Add(3 * time.Minute),
		"is 3m0s behind this mac": before.Add(-3 * time.Minute),
	} {
		var d doctor
		d.clock("store", theirs, before, after)
		found := d.Found
		if (want != "") != (len(found) == 1) || want != "" && !strings.Contains(found[0].Finding, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
}

// A server that is away is no finding, and does not hide what is wrong with the others.
func TestDoctor_ServerThatIsAway(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	status, found := finds(t, "--store", "redis://127.0.0.1:1", "--nats", server.URL(), "--stream", "NONE")
	if status != exitError || len(found) != 1 {
		t.Errorf("the exit status is %d, found %q, want 1 and a stream that is missing", status, found)
	}
}

// The transcript of docs/operations.md is what doctor says.
func TestDoctor_Transcript(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Before the first message\n")
	if !ok {
		t.Fatal("docs/operations.md has no section")
	}
	_, block, _ := strings.Cut(section, "\n    $ ")
	command, rest, _ := strings.Cut(block, "\n")
	var want strings.Builder
	for line := range strings.Lines(rest) {
		line, shown := strings.CutPrefix(line, "    ")
		if !shown {
			break
		}
		want.WriteString(line)
	}
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	words := strings.Fields(strings.ReplaceAll(command, "127.0.0.1:6379", server.Addr))
	var out, log bytes.Buffer
	status := run(context.Background(), words[1:], nil, &out, &log)
	if out.String() != want.String() || status != exitFound {
		t.Errorf("%s: status %d, the page shows\n%sand it says\n%s%s", command, status, want.String(), &out, &log)
	}
}

func TestDoctor_Cassandra(t *testing.T) {
	t.Parallel()
	server := cassandratest.Shared(t)
	at := server.URL(server.Keyspace(t))
	wantOnly(t, []string{`error store, table: is missing`}, "--store", at)
	if err := migrate(at); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, []string{"error store: the keyspace has one replica"}, "--store", at)
}
