package rpc_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer/idempotencyconnect"
	"github.com/oncemill/oncemill/producer/idempotencygrpc"
)

// The environment of a process that will be killed.
const (
	childPath = "ONCEMILL_TEST_RPC_PATH" // of its database
	childStop = "ONCEMILL_TEST_RPC_STOP" // where it stops to get killed
)

// Where a process stops.
const (
	beforeEffect = "before the effect"
	afterEffect  = "after the effect"
	beforeReply  = "before the response leaves"
)

const (
	service   = "shop.v1.Payments"
	procedure = "/" + service + "/Pay"
	lease     = 1500 * time.Millisecond // a claim gets a sixth of it: enough on a machine that is busy
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		go func() { // it ends with its parent
			io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		if err := runChild(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// open opens the database of a shop.
func open(ctx context.Context, path string) (*sql.DB, *sqlitestore.Store, error) {
	db, err := sqliteoutbox.Open(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	store, err := sqlitestore.New(db, sqlitestore.Config{Logger: keytest.Quiet()})
	if err != nil {
		return nil, nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (id TEXT)`)
	return db, store, err
}

// runChild is the process: a shop on two sockets that its parent keeps.
func runChild(path string) error {
	_, store, err := open(context.Background(), path)
	if err != nil {
		return err
	}
	guard, err := oncemill.NewGuard(store.Inbox(), oncemill.Policy{Lease: lease, Logger: keytest.Quiet()})
	if err != nil {
		return err
	}
	forConnect, err := idempotencyconnect.New(guard, idempotencyconnect.Config{Account: idempotencyconnect.SingleTenant})
	if err != nil {
		return err
	}
	forGRPC, err := idempotencygrpc.New(guard, idempotencygrpc.Config{Account: idempotencygrpc.SingleTenant, Group: "grpc"})
	if err != nil {
		return err
	}
	sockets := make([]net.Listener, 2)
	for i := range sockets {
		if sockets[i], err = net.FileListener(os.NewFile(uintptr(3+i), "socket")); err != nil {
			return err
		}
	}
	ended := make(chan error, 2)
	go func() { ended <- serveConnect(sockets[0], forConnect) }()
	go func() { ended <- serveGRPC(sockets[1], forGRPC) }()
	fmt.Println("serving")
	return <-ended
}

// pay is the handler of both.
func pay(ctx context.Context) (*wrapperspb.StringValue, error) {
	id := oncemill.FromContext(ctx).Key.ID
	stopAt(beforeEffect)
	if _, err := sqlitestore.Tx(ctx).ExecContext(ctx, `INSERT INTO payments VALUES (?)`, id); err != nil {
		return nil, err
	}
	stopAt(afterEffect)
	return wrapperspb.String("paid " + id), nil
}

// stopAt says that the process can be killed, and waits for it.
func stopAt(where string) {
	if os.Getenv(childStop) == where {
		fmt.Println("stopped")
		select {}
	}
}

func serveConnect(l net.Listener, keys *idempotencyconnect.Interceptor) error {
	stopping := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			response, err := next(ctx, request)
			stopAt(beforeReply)
			return response, err
		}
	})
	return http.Serve(l, connect.NewUnaryHandlerSimple(procedure,
		func(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) { return pay(ctx) },
		connect.WithInterceptors(stopping, keys)))
}

func serveGRPC(l net.Listener, keys *idempotencygrpc.Interceptor) error {
	stopping := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		response, err := next(ctx, request)
		stopAt(beforeReply)
		return response, err
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(stopping, keys.Unary), grpc.ChainStreamInterceptor(keys.Stream))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Pay", Handler: func(
			shop any, ctx context.Context, read func(any) error, intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			request := new(wrapperspb.StringValue)
			if err := read(request); err != nil {
				return nil, err
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{Server: shop, FullMethod: procedure},
				func(ctx context.Context, _ any) (any, error) { return pay(ctx) })
		}}},
	}, nil)
	return server.Serve(l)
}

// A shop is a database and sockets that outlive its process.
type shop struct {
	path    string
	sockets []*os.File
	connect string // address
	grpc    string
	db      *sql.DB
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{path: t.TempDir() + "/shop.db"}
	var err error
	if s.db, _, err = open(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	for _, address := range []*string{&s.connect, &s.grpc} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file, err := l.(*net.TCPListener).File() // connections wait in it for the next process
		if err != nil {
			t.Fatal(err)
		}
		*address = l.Addr().String()
		l.Close()
		s.sockets = append(s.sockets, file)
		t.Cleanup(func() { file.Close() })
	}
	return s
}

// payments returns how often each payment was made.
func (s *shop) payments(t testing.TB) map[string]int {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), `SELECT id, COUNT(*) FROM payments GROUP BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	made := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		made[id] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return made
}

// A process is a shop's that can be killed.
type process struct {
	cmd    *exec.Cmd
	lines  *bufio.Reader
	errors *strings.Builder
}

func (s *shop) start(t testing.TB, stop string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), errors: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), childPath+"="+s.path, childStop+"="+stop)
	p.cmd.Stderr = p.errors
	p.cmd.ExtraFiles = s.sockets
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.lines = bufio.NewReader(out)
	p.says(t, "serving")
	return p
}

func (p *process) says(t testing.TB, want string) {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("the process said %q, want %q: %v: %s", line, want, err, p.errors)
	}
}

// kill ends it by SIGKILL.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}
