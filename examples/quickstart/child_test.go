package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// What this test binary becomes by its first argument, so that nothing has to be built for processes that are killed.
const (
	quickstartRole = "be-the-quickstart" // the quickstart's own flags follow
	natsRole       = "be-a-nats-server"  // port and directory follow
)

func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case quickstartRole:
		os.Args = slices.Delete(os.Args, 1, 2)
		os.Exit(mainStatus())
	case natsRole:
		if err := serveNATS(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// program is the path of this test binary.
func program(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// serveNATS is a NATS server with JetStream, until it is killed.
func serveNATS(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%s wants a port and a directory, got %q", natsRole, args)
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: args[1], NoSigs: true})
	if err != nil {
		return err
	}
	srv.ConfigureLogger()
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		return fmt.Errorf("the NATS server is not ready")
	}
	srv.WaitForShutdown()
	return nil
}
