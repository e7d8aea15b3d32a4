package house

import "strings"

// programs is the top floor.
const programs = 6

// The house as it is planned: a package imports only lower floors of this repository, and beside them the standard
// library and what its row says. Packages that are not written yet have their place already.
var house = table{
	{0, "dedupstore", "the contract for store authors, and the in-memory store", nil},
	{0, "internal/ids", "derives IDs", uuid},
	{0, "internal/telemetry", "every span, attribute and metric name, once",
		these(otelAPI, []string{module + "/internal/contexts"})},
	{0, "internal/leaktest", "tests end without goroutines", testLib},
	{0, "internal/recorder", "tests of suites: a test that fails, without failing", testLib},
	{0, "internal/batch", "operations of many callers travel together", nil},
	{0, "internal/anytext", "strings that need not be UTF-8, in JSON", nil},
	{0, "internal/errtext", "makes of errors what can be kept", nil},
	{0, "internal/marks", "what an error says of its run", nil},
	{0, "internal/pace", "the pauses of loops that try again, and what hangs", nil},
	{0, "internal/contexts", "contexts that cost little", nil},
	{0, "internal/headers", "what headers other brokers carry", nil},
	{0, "internal/isnil", "nils that an interface hides", nil},
	{0, "internal/txctx", "a transaction in a context", []string{module + "/internal/contexts"}},
	{0, "internal/rowsecurity", "tables of PostgreSQL that hide rows", nil},
	{0, "internal/testserver", "real servers for tests", testLib},

	{1, ".", "the engine", these(otelAPI, gobreaker)},
	{1, "producer", "messages and publishers", these(jcs, otelAPI)},
	{2, "internal/answertest", "answers of a guard, for tests", testLib},
	{1, "internal/explain", "tells what happened to a message, from its record", nil},
	{1, "internal/census", "adds up records by scope", nil},
	{1, "internal/sqlstore", "what stores and outboxes on SQL databases share, without a driver", nil},
	{1, "internal/recordstore", "what stores share that read a record, decide, and write it conditionally", nil},
	{1, "internal/goldentest", "records as earlier versions wrote them", testLib},
	{0, "internal/sqltest", "the statements that stores on SQL databases send", testLib},
	{1, "internal/claimtest", "usual claims, and many who change one record, for tests of stores", testLib},
	{1, "internal/lineartest", "histories of stores, checked for linearizability", these(testLib, porcupine)},
	{1, "internal/testserver/redistest", "Redis and Valkey, alone, as a cluster, behind a proxy that loses",
		these(testLib, goRedis)},
	{1, "internal/testserver/natstest", "NATS with JetStream, alone and as a cluster",
		these(testLib, natsServer, natsGo)},
	{1, "internal/testserver/postgrestest", "PostgreSQL and PgBouncer", these(testLib, pgx)},
	{1, "internal/testserver/mysqltest", "MariaDB", these(testLib, mysql)},
	{1, "internal/testserver/kafkatest", "Kafka", these(testLib, franz)},
	{1, "internal/testserver/rabbittest", "RabbitMQ", testLib},
	{1, "internal/testserver/dynamotest", "dynalite, behind a proxy that loses", testLib},
	{1, "internal/testserver/cassandratest", "Cassandra, behind a proxy that loses", these(testLib, gocql)},
	{1, "dedupstore/storetest", "the conformance suite of stores", testLib},

	{2, "dedupstore/redisstore", "records in Redis", these(goRedis)},
	{2, "dedupstore/dynamostore", "records in Amazon DynamoDB", awsSDK},
	{2, "dedupstore/cassandrastore", "records in Cassandra", gocql},
	{2, "dedupstore/pgstore", "records in PostgreSQL", pgx},
	{2, "dedupstore/sqlitestore", "records in SQLite", sqlite},
	{2, "dedupstore/mysqlstore", "records in MySQL", mysql},
	{2, "consumer", "one delivery, one decision", otelAPI},
	{2, "consumer/health", "what is wrong with servers, and how far consumers are behind", nil},
	{2, "consumer/deadletters", "how operators look at dead letters, and run their messages again", nil},
	{2, "internal/crowdtest", "stores under a guard: runs beside one that is stuck, steps in an inbox", testLib},
	{2, "internal/requests", "what HTTP requests and other calls share on their way to a run", nil},
	{2, "producer/webhook", "webhooks become messages with stable IDs", nil},

	{2, "internal/outgoing", "messages as rows of an outbox, and one call of a publisher by its relay", otelAPI},

	{2, "internal/natswire", "how messages travel over NATS", nil},

	{3, "dedupstore/natskv", "records in NATS JetStream: in a bucket, or beside what handlers publish", natsGo},
	{3, "outbox", "the relay and its contract", otelAPI},
	{3, "oncemilltest", "for users' tests of their handlers: deliver twice, crash, fail, two at once", testLib},
	{3, "consumer/sourcetest", "the conformance suite of sources", testLib},
	{3, "internal/consumertest", "processors, and dead letters, for tests of consumers", testLib},
	{3, "producer/idempotencykey", "HTTP requests become runs with stable IDs", nil},
	{3, "internal/rpc", "unary calls of protobuf services become runs, for every library", protobuf},
	{3, "transport/oncewatermill", "Watermill: middleware, chain, subscriber, publishers", watermill},
	{3, "internal/worker", "the consumer loop of all transports", nil},
	{4, "transport/natsjs", "NATS JetStream, both directions", natsGo},
	{4, "transport/franz", "Kafka, both directions", franz},

	{4, "internal/keytest", "tests of idempotency keys over every store", testLib},
	{4, "producer/idempotencyconnect", "connect-go: calls become runs with stable IDs", these(connect, protobuf)},
	{4, "producer/idempotencygrpc", "grpc-go: calls become runs with stable IDs", these(grpc, protobuf)},
	{4, "internal/relaytest", "relays in the tests of outboxes", testLib},
	{4, "outbox/pgoutbox", "rows in PostgreSQL", pgx},
	{4, "outbox/sqliteoutbox", "rows in SQLite", sqlite},
	{4, "outbox/mysqloutbox", "rows in MySQL", mysql},
	{4, "internal/goldentest/goldenrows", "rows of outboxes as earlier versions wrote them", testLib},
	{4, "outbox/outboxtest", "the conformance suite of outboxes", testLib},

	{4, "internal/sim", "histories that follow from a seed, in virtual time", these(testLib, otelAPI)},

	{4, "internal/operate", "what operators do, for the command and the console", nil},
	{5, "console", "the web console, a handler for any mux", nil},

	{5, "internal/rpc/rpctest", "tests of calls, for every library", these(testLib, protobuf)},
	{5, "outbox/pgwal", "rows read from PostgreSQL's log", these(pgx, pglogrepl)},

	{programs, "cmd/...", "programs", everything},
	{programs, "examples/...", "programs to learn from", everything},
	{programs, "bench/...", "figures", everything},
	{programs, "e2e/...", "tests that need servers or modules of several kinds", everything},
	{programs, "internal/house", "these tests", nil},
	{programs, "scripts/...", "what the scripts run", nil},
}

// What a row can allow: import paths, where "x/..." is x and all below it.
var (
	everything = []string{"..."}
	testLib    = []string{"testing/..."} // makes the package test code: production packages do not import it

	uuid = []string{"github.com/google/uuid"}
	jcs  = []string{"github.com/gowebpki/jcs"}

	// The API of OpenTelemetry, never its SDK or an exporter: those are the user's choice.
	otelAPI = []string{
		"go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/attribute",
		"go.opentelemetry.io/otel/baggage",
		"go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/metric/...",
		"go.opentelemetry.io/otel/propagation",
		"go.opentelemetry.io/otel/semconv/...",
		"go.opentelemetry.io/otel/trace/...",
	}

	watermill = []string{"github.com/ThreeDotsLabs/watermill/..."}

	porcupine  = []string{"github.com/anishathalye/porcupine"}
	goRedis    = []string{"github.com/redis/go-redis/v9/..."}
	gocql      = []string{"github.com/apache/cassandra-gocql-driver/v2"}
	gobreaker  = []string{"github.com/sony/gobreaker/v2"}
	awsSDK     = []string{"github.com/aws/aws-sdk-go-v2/...", "github.com/aws/smithy-go/..."}
	pgx        = []string{"github.com/jackc/pgx/v5/..."}
	pglogrepl  = []string{"github.com/jackc/pglogrepl"}
	sqlite     = []string{"modernc.org/sqlite/..."}
	mysql      = []string{"github.com/go-sql-driver/mysql"}
	natsGo     = []string{"github.com/nats-io/nats.go/..."}
	natsServer = []string{"github.com/nats-io/nats-server/v2/..."}
	franz      = []string{"github.com/twmb/franz-go/..."}
	protobuf   = []string{"google.golang.org/protobuf/..."}
	connect    = []string{"connectrpc.com/connect"}
	grpc       = []string{"google.golang.org/grpc/...", "google.golang.org/genproto/googleapis/rpc/..."}
)

func these(allowed ...[]string) []string {
	var all []string
	for _, a := range allowed {
		all = append(all, a...)
	}
	return all
}

type table []row

type row struct {
	floor  int
	path   string // below the module's; "." is the module's root
	task   string
	beside []string // what it may import beside lower floors and the standard library
}

func (t table) row(path string) (row, bool) {
	for _, r := range t {
		if matches(r.path, path) {
			return r, true
		}
	}
	return row{}, false
}

func (r row) allows(path string) bool {
	for _, pattern := range r.beside {
		if matches(pattern, path) {
			return true
		}
	}
	return false
}

// testCode says whether the package is there for tests.
func (r row) testCode() bool { return r.allows("testing") }

// matches compares a path with a pattern: "x/..." is x and all below it, "..." is everything.
func matches(pattern, path string) bool {
	below, wild := strings.CutSuffix(pattern, "...")
	if !wild {
		return path == pattern
	}
	return strings.HasPrefix(path+"/", below)
}
