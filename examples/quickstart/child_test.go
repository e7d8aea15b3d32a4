package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// What this test binary becomes by its first argument, so that nothing has to be built for processes that are killed.
const (
	quickstartRole = "be-the-quickstart" // its options follow, as JSON
	natsRole       = "be-a-nats-server"  // port and directory follow
)

func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case quickstartRole:
		os.Exit(playChild(os.Args[2:]))
	case natsRole:
		if err := serveNATS(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// playChild is the quickstart, and prints its books as JSON.
func playChild(args []string) int {
	var c childOptions
	err := json.Unmarshal([]byte(args[0]), &c)
	if err == nil {
		var all report
		if all, err = play(context.Background(), options{nats: c.NATS, orders: c.Orders, dir: c.Dir, seed: 1},
			io.Discard, os.Stderr); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(all)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// childOptions are what the quickstart is told as a process of its own.
type childOptions struct {
	NATS, Dir string
	Orders    int
}

// self is the path of this test binary.
func self(t *testing.T) string {
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
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: args[1],
		NoSigs: true})
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
