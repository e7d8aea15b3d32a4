package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A NATS is a server of this program's own, with JetStream in files of its own. It is a process beside this one, so that
// what it uses is not counted here.
type NATS struct {
	URL   string
	Admin *nats.Conn // a connection beside those that are measured

	process *testserver.Process
	dir     string
}

const (
	natsRole   = "serve-nats"          // the argument by which a program becomes a server
	cpuSubject = "_oncemill.bench.cpu" // answers with nanoseconds
	natsStart  = 10 * time.Second      // how long a start may take
)

// StartNATS runs this program once more, as a NATS server on a free loopback port: its main function, or that of its
// tests, must begin with ServeIfAsked. The caller stops it.
func StartNATS() (*NATS, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var s *NATS
	err = testserver.OnFreePort(func(port int) (err error) {
		s, err = startNATS(program, port)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kit: nats-server: %w", err)
	}
	return s, nil
}

// FreshStream replaces a stream by an empty one. A server that is still clearing a deleted stream away cannot make one
// of its name ("error creating store"). nats-server 2.15.2 was seen to bring the old one back with its messages; then
// it is deleted again.
func FreshStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, natsStart)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		if err := js.DeleteStream(ctx, config.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, err
		}
		stream, err := js.CreateStream(ctx, config)
		var refused *jetstream.APIError
		switch {
		case err == nil && stream.CachedInfo().State.LastSeq == 0:
			return stream, nil
		case err != nil && !(errors.As(err, &refused) && refused.ErrorCode == errNoStore):
			return nil, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("kit: the server does not make an empty stream %s", config.Name), err)
		}
	}
}

// Acknowledged returns an error unless all that a stream has is acknowledged by a durable consumer of all of it.
func Acknowledged(ctx context.Context, stream jetstream.Stream, durable string) error {
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	cons, err := stream.Consumer(ctx, durable)
	if err != nil {
		return err
	}
	if floor, last := cons.CachedInfo().AckFloor.Stream, info.State.LastSeq; floor < last {
		return fmt.Errorf("%s: messages above %d of %d are not acknowledged", info.Config.Name, floor, last)
	}
	return nil
}

const errNoStore = 10049 // JSStreamStoreFailedF of nats-server

func startNATS(program string, port int) (*NATS, error) {
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	if err != nil {
		return nil, err
	}
	p, err := testserver.StartProgram(dir, program, natsRole, strconv.Itoa(port), dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &NATS{URL: "nats://127.0.0.1:" + strconv.Itoa(port), process: p, dir: dir}
	if s.Admin, err = s.connect(); err != nil {
		return nil, errors.Join(err, p.Kill(), os.RemoveAll(dir))
	}
	return s, nil
}

// connect waits until the server answers.
func (s *NATS) connect() (*nats.Conn, error) {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; {
		nc, err := nats.Connect(s.URL)
		if err == nil {
			if _, err = cpuOf(nc); err == nil {
				return nc, nil
			}
			nc.Close()
		}
		if time.Since(begun) > natsStart {
			return nil, err
		}
		select {
		case <-again.C:
		case <-s.process.Ended():
			return nil, errors.New("the process has ended")
		}
	}
}

// Stop ends the server and waits for its end.
func (s *NATS) Stop() error {
	s.Admin.Close()
	return errors.Join(s.process.Kill(), os.RemoveAll(s.dir))
}

// CPU is the time that the server has used, user and system.
func (s *NATS) CPU(context.Context) (time.Duration, error) { return cpuOf(s.Admin) }

func cpuOf(nc *nats.Conn) (time.Duration, error) {
	m, err := nc.Request(cpuSubject, nil, natsStart)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(string(m.Data), 10, 64)
	return time.Duration(ns), err
}

// ServeIfAsked makes this process the server that StartNATS has started it to be, and never returns then.
func ServeIfAsked() {
	if len(os.Args) != 4 || os.Args[1] != natsRole {
		return
	}
	if err := serveNATS(os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveNATS(port, dir string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: number, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(natsStart) {
		return errors.New("the server is not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(cpuSubject, answerCPU); err != nil {
		return err
	}
	<-ended
	return nil
}

func answerCPU(m *nats.Msg) {
	if used, err := Used(); err == nil { // who asked gets no answer otherwise, and says so
		_ = m.Respond(strconv.AppendInt(nil, int64(used.CPU), 10))
	}
}
