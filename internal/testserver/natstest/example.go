package natstest

import (
	"errors"
	"os"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ForExample runs a server in this process for an Example, which has no testing.TB. stop ends it.
func ForExample() (js jetstream.JetStream, stop func(), err error) {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, nil, err
	}
	s.Start()
	if !s.ReadyForConnections(testserver.WaitLimit) {
		return nil, nil, errors.New("the server is not ready")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return nil, nil, err
	}
	js, err = jetstream.New(nc)
	return js, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}, err
}
