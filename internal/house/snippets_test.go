package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imported are the packages that snippets of the docs may name without importing them.
var imported = []string{
	"context",
	"errors",
	"maps",
	"net/http",
	"os",
	"os/signal",
	"sync",
	"syscall",
	"testing",
	"time",
	"connectrpc.com/connect",
	"github.com/jackc/pgx/v5",
	"github.com/jackc/pgx/v5/pgxpool",
	"github.com/nats-io/nats.go/jetstream",
	"github.com/redis/go-redis/v9",
	"github.com/riverqueue/river",
	"github.com/twmb/franz-go/pkg/kgo",
	"github.com/apache/cassandra-gocql-driver/v2",
	"github.com/aws/aws-sdk-go-v2/service/dynamodb",
	"github.com/ThreeDotsLabs/watermill",
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp",
	"github.com/ThreeDotsLabs/watermill/message",
	"database/sql",
	"github.com/ThreeDotsLabs/watermill/message/router/middleware",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/propagation",
	"google.golang.org/grpc",
	module,
	module + "/console",
	module + "/consumer",
	module + "/consumer/health",
	module + "/consumer/deadletters",
	module + "/consumer/sourcetest",
	module + "/dedupstore",
	module + "/dedupstore/cassandrastore",
	module + "/dedupstore/dynamostore",
	module + "/dedupstore/mysqlstore",
	module + "/dedupstore/natskv",
	module + "/dedupstore/pgstore",
	module + "/dedupstore/redisstore",
	module + "/dedupstore/sqlitestore",
	module + "/outbox",
	module + "/outbox/pgoutbox",
	module + "/outbox/sqliteoutbox",
	module + "/producer",
	module + "/producer/idempotencyconnect",
	module + "/producer/idempotencygrpc",
	module + "/producer/idempotencykey",
	module + "/producer/webhook",
	module + "/transport/franz",
	module + "/transport/natsjs",
	module + "/transport/oncewatermill",
}

// The pages with snippets, and what they take for given: at 0 all of a page, at n its snippet n alone.
var given = map[string]map[int]string{
	"docs/adopting.md": {0: `var store dedupstore.Store`},
	"docs/brokers.md": {0: `
		var (
			ctx       context.Context
			js        jetstream.JetStream
			cons      jetstream.Consumer
			charge    func(context.Context, jetstream.Msg) error
			insertAll func(context.Context, []*kgo.Record) []error
			source    consumer.Source
			pub       message.Publisher
			once      *consumer.Processor
			router    *message.Router
			brokers   []string
			store     dedupstore.Store
			ticket    string
			uri       string
			logger    watermill.LoggerAdapter

			textMarshaler struct{ amqp.DefaultMarshaler }
			chargeRecord  func(context.Context, *kgo.Record) error
			chargeMessage func(*message.Message) error
		)
		type Refund struct{}
		var bank interface{ Refund(ctx context.Context, ticket, key string) (Refund, error) }`},
	"docs/console.md": {0: `
		var (
			ctx       context.Context
			store     dedupstore.Inspector
			mux       *http.ServeMux
			authorize func(*http.Request, console.Action) (string, error)
			letters   deadletters.Source
			js        jetstream.JetStream
			policy    oncemill.Policy
		)`},
	"docs/from/deduplicator.md": {0: `
		var (
			router *message.Router
			rdb    *redis.Client
			once   *consumer.Processor
			dedup  middleware.Deduplicator
		)`},
	"docs/from/outbox.md": {0: `
		var (
			ctx     context.Context
			tx      pgx.Tx
			box     *pgoutbox.Outbox
			forward message.Publisher
			id      string
			body    []byte
			err     error
		)`},
	"docs/from/river.md": {0: `
		type ChargeArgs struct {
			river.JobArgs
			Order string
		}
		var (
			guard *oncemill.Guard
			bank  interface{ Charge(ctx context.Context, order, key string) error }
		)`},
	"docs/from/setnx.md": {
		0: `var rdb *redis.Client`,
		1: `var charge func(ctx context.Context, id string) error`,
		2: `
		var orderID func(jetstream.Msg) string
		var bank interface{ Charge(ctx context.Context, order []byte, key string) error }`,
	},
	"docs/from/table.md": {0: `
		var (
			ctx context.Context
			tx  pgx.Tx
			id  string
			err error
		)`},
	"docs/http.md": {0: `
		var (
			ctx   context.Context
			store dedupstore.Store
			account func(*http.Request) (string, error)
			auth  interface{ Account(context.Context) (string, error) }
			mux   *http.ServeMux
			pay   http.HandlerFunc
			w     http.ResponseWriter
			name  string
			box   interface{ Wake() }
			order struct{ Key string }

			server *http.Server
		)`},
	"docs/operations.md": {0: `
		var (
			ctx  context.Context
			dead jetstream.MessagesContext
			pub  producer.Publisher
			w    *natsjs.Worker
		)`},
	"docs/outbox.md": {0: `
		var (
			ctx  context.Context
			pool *pgxpool.Pool
			pub  producer.Publisher
			ids  []string

			order string
			body  []byte
		)`},
	"docs/rpc.md": {0: `
		type client struct{}
		var (
			ctx   context.Context
			store dedupstore.Store
			auth  interface{ Account(context.Context) (string, error) }
			order struct{ Key string }

			authenticate      connect.Interceptor
			authorize         grpc.UnaryServerInterceptor
			pay               any
			url, target       string
			paymentsv1connect interface {
				NewPaymentsHandler(any, ...connect.HandlerOption) (string, http.Handler)
				NewPaymentsClient(connect.HTTPClient, string, ...connect.ClientOption) client
			}
		)`},
	"docs/mysql.md": {0: `var ctx context.Context`},
	"docs/postgres.md": {0: `
		var (
			ctx  context.Context
			pool *pgxpool.Pool
		)`},
	"docs/cassandra.md": {0: `
		var (
			ctx     context.Context
			session *gocql.Session
		)`},
	"docs/dynamodb.md": {0: `
		var (
			ctx    context.Context
			client *dynamodb.Client
		)`},
	"docs/production.md": {0: `
		var (
			service interface{ Start(string, func(context.Context) error) }
			parts   interface{ HTTP(any, http.Handler) func(context.Context) error }
			screens *console.Console
			leased  *pgstore.Store
			relay   *outbox.Relay
			router  *message.Router
			worker  *natsjs.Worker

			probes, takeOrders                      func(...any) http.Handler
			admin, public, ready, others, keys, box any
		)`},
	"docs/natskv.md": {0: `
		var (
			ctx context.Context
			js  jetstream.JetStream
		)`},
	"docs/nats-exactly-once.md": {0: `
		var (
			ctx         context.Context
			js          jetstream.JetStream
			priced      func([]byte) []byte
			order       struct{ ID string }
			body, audit []byte
			store       *natskv.Store
		)`},
	"docs/redis.md": {0: `
		var rdb *redis.Client`},
	"docs/sources.md": {
		0: `
		var ctx context.Context`,
		2: `
		type message struct {
			*producer.Message
			Position string
		}
		var (
			grace       time.Duration
			maxInFlight int
			received    chan message
			handle      consumer.SourceHandler
			topic, file string
		)`,
		3: `
		type broker interface {
			Source(sourcetest.Member) consumer.Source
			Publish(...sourcetest.Message)
			Left() int
		}
		var newBroker func(*testing.T) broker`,
	},
	"docs/steps.md": {0: `
		type (
			Charge struct{}
			Parcel struct{}
			Order  struct{ Card, Amount, Address, Email string }
		)
		var (
			ctx          context.Context
			store        *pgstore.Store
			card, amount string
			bank         interface {
				Charge(ctx context.Context, card, amount, key string) (Charge, error)
			}
			post interface {
				Book(ctx context.Context, address, key string) (Parcel, error)
			}
			mail interface {
				Send(ctx context.Context, to string, charge Charge, parcel Parcel) error
			}
		)`},
	"docs/webhooks.md": {0: `
		var (
			ctx   context.Context
			db    *sql.DB
			pool  *pgxpool.Pool
			redis *redisstore.Store
		)`},
}

func TestDocs_SnippetsCompile(t *testing.T) {
	t.Parallel()
	imports, err := exports(imported)
	if err != nil {
		t.Fatal(err)
	}
	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"*.md", "from/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		page = filepath.ToSlash(page)
		known, ok := given[page]
		if found := snippets(string(text)); ok != (len(found) > 0) {
			t.Errorf("%s: %d snippets, and what they take for given is there: %t", page, len(found), ok)
		}
		for _, problem := range problems(page, string(text), known, imports) {
			t.Error(problem)
		}
	}
}

// A snippet is Go code of a page that is a part of something. Whole programs are no snippets: e2e/start runs them.
type snippet struct {
	line int // of its first line
	code string
}

// snippets returns the blocks of Go code of a page.
func snippets(page string) (found []snippet) {
	inside := false
	for i, line := range strings.Split(page, "\n") {
		switch {
		case line == "```go":
			inside, found = true, append(found, snippet{line: i + 2})
		case line == "```" && inside && strings.HasPrefix(found[len(found)-1].code, "package "):
			inside, found = false, found[:len(found)-1]
		case line == "```":
			inside = false
		case inside:
			found[len(found)-1].code += line + "\n"
		}
	}
	return found
}

// leftOut is the end of a composite literal that a page cuts off.
var leftOut = regexp.MustCompile(`,? ?…}`)

// problems type-checks the snippets of a page as its reader reads them, from top to bottom: each sees the names of
// those before it. A name declared for later use is no problem, and neither is an error that the next line overwrites.
func problems(page, text string, known map[int]string, imports types.Importer) (found []string) {
	var body strings.Builder
	all := snippets(text)
	for i, s := range all {
		fmt.Fprintf(&body, "\n{\n%s\n//line %s:%d\n%s", known[i+1], page, s.line, leftOut.ReplaceAllString(s.code, "}"))
	}
	body.WriteString(strings.Repeat("}", len(all)))

	fset := token.NewFileSet()
	src := "package p\nfunc _() {\n" + known[0] + body.String() + "\n}\n"
	f, err := parser.ParseFile(fset, "given", src, 0)
	if err != nil {
		return []string{err.Error()}
	}
	f, err = parser.ParseFile(fset, "given", withImports(src, f), 0)
	if err != nil {
		return []string{err.Error()}
	}
	config := types.Config{Importer: imports, Error: func(err error) {
		if typed, ok := errors.AsType[types.Error](err); ok && !typed.Soft {
			found = append(found, fmt.Sprintf("%s: %s", fset.Position(typed.Pos), typed.Msg))
		}
	}}
	config.Check("p", fset, []*ast.File{f}, nil) // Error gets all of them
	return found
}

// withImports adds the imports of what a source names.
func withImports(src string, f *ast.File) string {
	used := map[string]bool{}
	for n := range ast.Preorder(f) {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
	}
	var imports strings.Builder
	for _, path := range imported {
		if used[nameOf(path)] {
			fmt.Fprintf(&imports, "import %s\n", strconv.Quote(path))
		}
	}
	return strings.Replace(src, "package p\n", "package p\n"+imports.String(), 1)
}

var version = regexp.MustCompile(`/v\d+$`)

// nameOf is the name of a package, as its path has it.
func nameOf(path string) string {
	name := filepath.Base(version.ReplaceAllString(path, ""))
	if name == "cassandra-gocql-driver" {
		return "gocql"
	}
	return strings.TrimPrefix(name, "go-")
}

// exports returns an importer of packages as `go build` has compiled them.
func exports(paths []string) (types.Importer, error) {
	args := []string{"list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}"}
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race") // they are compiled so already
	}
	cmd := exec.Command("go", append(args, paths...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		file, ok := files[path]
		if !ok {
			return nil, fmt.Errorf("%s is not among %q", path, slices.Sorted(maps.Keys(files)))
		}
		return os.Open(file)
	}), nil
}

func TestProblems_FindsWhatDoesNotCompile(t *testing.T) {
	t.Parallel()
	imports, err := exports([]string{"context", "net/http"})
	if err != nil {
		t.Fatal(err)
	}
	known := map[int]string{0: "var ctx context.Context", 2: "var f func(int)"}
	block := func(code string) string { return "Text.\n\n```go\n" + code + "\n```\n" }
	for name, tc := range map[string]struct{ page, want string }{
		"a name that a package does not have": {block("http.Gett(\"/\")"), "p.md:4: undefined: http.Gett"},
		"a field that a struct does not have": {block("_ = http.Server{Adr: \"\"}"), "unknown field Adr"},
		"a result too few": {block("req := http.NewRequest(\"GET\", \"/\", nil)"),
			"assignment mismatch"},
		"a wrong type":            {block("http.NewRequestWithContext(7, \"GET\", \"/\", nil)"), "cannot use 7"},
		"a name that nobody gave": {block("f(7)"), "undefined: f"},
		"what is no Go":           {block("http.Get("), "expected"},

		"what the reader has":          {block("<-ctx.Done()"), ""},
		"a name of an earlier block":   {block("s := &http.Server{}") + block("s.Close()"), ""},
		"a name that is given anew":    {block("s := 1") + block("s := 2"), ""},
		"a name that the second has":   {block("s := 1") + block("f(7)"), ""},
		"a name for later":             {block("s := &http.Server{}"), ""},
		"an error that is overwritten": {block("s, err := 1, ctx.Err()\nerr = ctx.Err()"), ""},
		"what is left out":             {block("_ = http.Server{Addr: \"…\", …}\n_ = http.Server{…}"), ""},
		"another language":             {"```sh\nhttp.Gett\n```\n", ""},
		"a whole program":              {block("package main\n\nfunc main() {}") + block("<-ctx.Done()"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := strings.Join(problems("p.md", tc.page, known, imports), "; ")
			if (tc.want == "") != (found == "") || !strings.Contains(found, tc.want) {
				t.Errorf("found %q, want %q", found, tc.want)
			}
		})
	}
}
