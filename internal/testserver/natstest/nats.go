package natstest

import (
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A Server is a NATS server with JetStream for one test, embedded in the test's process, with its streams in a
// directory of the test.
type Server struct {
	t       testing.TB
	options server.Options
	server  *server.Server
}

// Start returns a new, empty NATS server with JetStream on a free loopback port. The functions may change its options
// before it starts.
func Start(t testing.TB, configure ...func(*server.Options)) *Server {
	t.Helper()
	testserver.Wanted(t)
	s := &Server{t: t, options: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir(), JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 1 << 30,
	}}
	for _, f := range configure {
		f(&s.options)
	}
	s.start()
	t.Cleanup(s.Shutdown)
	testserver.Record(t, "nats-server "+server.VERSION+" (embedded)")
	return s
}

func (s *Server) start() {
	s.t.Helper()
	options := s.options // the server writes to its options
	started, err := server.NewServer(&options)
	if err != nil {
		s.t.Fatalf("testserver: nats-server: %v", err)
	}
	started.Start()
	if !started.ReadyForConnections(testserver.WaitLimit) {
		started.Shutdown()
		started.WaitForShutdown()
		s.t.Fatalf("testserver: nats-server is not ready after %v", testserver.WaitLimit)
	}
	s.server, s.options.Port = started, options.Port
}

// URL is where clients connect to. It stays through restarts.
func (s *Server) URL() string { return s.server.ClientURL() }

// Connect returns a new connection, which is closed when the test ends. Without other options it reconnects for ever,
// without pauses that a test would notice.
func (s *Server) Connect(options ...nats.Option) *nats.Conn {
	s.t.Helper()
	return connectNATS(s.t, []string{s.URL()}, options...)
}

// JetStream returns JetStream on a new connection.
func (s *Server) JetStream(options ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(s.Connect(options...))
	if err != nil {
		s.t.Fatalf("testserver: JetStream: %v", err)
	}
	return js
}

// Shutdown stops the server without letting clients finish, and waits for its end. Streams in files stay.
func (s *Server) Shutdown() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// Restart starts the server again after Shutdown, on the same port and directory.
func (s *Server) Restart() {
	s.t.Helper()
	s.start()
}

// RestartWith stops the server and starts it with changed options.
func (s *Server) RestartWith(change func(*server.Options)) {
	s.t.Helper()
	s.Shutdown()
	change(&s.options)
	s.start()
}

// Reload makes the server take on changed options without a restart, as an operator's reload does. Clients stay, with
// what their users are allowed now. Users have to stay, too. When nats-server 2.15.2 puts a client out, it reads counts
// that the client's goroutine writes, and the race detector sees that now and then. RestartWith is for that.
func (s *Server) Reload(change func(*server.Options)) {
	s.t.Helper()
	change(&s.options)
	options := s.options
	if err := s.server.ReloadOptions(&options); err != nil {
		s.t.Fatalf("testserver: reload of nats-server: %v", err)
	}
}
