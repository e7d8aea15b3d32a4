package rabbittest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// debian is where Debian's package has the server's own script. That in PATH changes to another user first.
const debian = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// A Server is a RabbitMQ node for one test, or for several.
type Server struct {
	*testserver.Owned
	node
	t testing.TB
}

// Start starts a new, empty node for the test. The config adds lines of rabbitmq.conf, "name = value". It takes some
// seconds: a test that neither kills nor configures its node uses [Shared]. What is durable survives a killed node.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, node: need(t, config)}
	if err := s.makeFolder(); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	s.Owned = testserver.Own(t, "RabbitMQ", "", func() (*testserver.Process, error) {
		command, err := s.command()
		if err != nil {
			return nil, err
		}
		return testserver.StartServer(s.dir, command, testserver.WaitLimit, s.look)
	})
	s.Owned.Start(func(port int) error {
		if err := s.takePorts(port); err != nil {
			return err
		}
		p, err := testserver.StartServer(filepath.Join(s.dir, "epmd"), s.epmdCommand(), testserver.WaitLimit, s.lookAtEPMD)
		if err == nil {
			t.Cleanup(func() { p.Kill() })
		}
		return err
	})
	testserver.Record(t, "rabbitmq-server "+s.version()+" (started, single)")
	return s
}

// SharedConsumerTimeout is how long the node of [Shared] waits for an ack.
const SharedConsumerTimeout = 2 * time.Second

// shared is the node of this process.
var shared struct {
	testserver.Shared
	node node
	epmd *os.File
}

// Shared returns the node that the tests of this process share, and starts it for the first of them. The tests name
// their queues. Nobody stops it; it ends with the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	shared.Start(t, func() (alive *os.File, err error) {
		n := need(t, []string{fmt.Sprintf("consumer_timeout = %d", SharedConsumerTimeout.Milliseconds())})
		if err := n.makeFolder(); err != nil {
			return nil, err
		}
		err = testserver.OnFreePort(func(port int) error {
			if err := n.takePorts(port); err != nil {
				return err
			}
			dir := filepath.Join(n.dir, "epmd")
			shared.epmd, err = testserver.StartWatched(dir, n.epmdCommand(), testserver.WaitLimit, n.lookAtEPMD)
			if err != nil {
				return err
			}
			command, err := n.command()
			if err == nil {
				alive, err = testserver.StartWatched(n.dir, command, testserver.WaitLimit, n.look)
			}
			return err
		})
		shared.node = n
		return alive, err
	})
	s := &Server{t: t, node: shared.node, Owned: testserver.Own(t, "RabbitMQ", "", nil)}
	testserver.Record(t, "rabbitmq-server "+s.version()+" (started, single)")
	return s
}

// need finds the programs, or ends the test.
func need(t testing.TB, config []string) node {
	t.Helper()
	testserver.Wanted(t)
	n := node{program: debian, config: config}
	var err error
	if n.epmd, err = exec.LookPath("epmd"); err == nil {
		if _, elsewhere := os.Stat(debian); elsewhere != nil {
			n.program, err = exec.LookPath("rabbitmq-server")
		}
	}
	if err != nil {
		testserver.Missing(t, "RabbitMQ cannot be had: %v (Debian: apt-get install rabbitmq-server)", err)
	}
	return n
}

// Addr is where clients connect to: host:port. It stays through restarts.
func (s *Server) Addr() string { return s.addr() }

// URL is Addr as clients of AMQP want it.
func (s *Server) URL() string { return "amqp://guest:guest@" + s.Addr() + "/" }

// A node is the folder, ports and programs of a server.
type node struct {
	program, epmd string
	dir           string
	config        []string
	ports         ports
}

// ports are those of AMQP, of other nodes and tools, and of the daemon that tells nodes of each other.
type ports struct{ amqp, nodes, epmd int }

func (n *node) makeFolder() (err error) {
	if n.dir, err = os.MkdirTemp("", "oncemill-rabbit-"); err != nil {
		return err
	}
	return os.Mkdir(filepath.Join(n.dir, "epmd"), 0o700)
}

func (n *node) takePorts(port int) (err error) {
	n.ports.amqp = port
	if n.ports.nodes, err = testserver.FreePort(); err != nil {
		return err
	}
	n.ports.epmd, err = testserver.FreePort()
	return err
}

// epmdCommand runs the daemon that nodes ask for each other. Otherwise the node would, and nobody would stop it.
func (n *node) epmdCommand() []string {
	return []string{n.epmd, "-address", "127.0.0.1", "-port", strconv.Itoa(n.ports.epmd)}
}

func (n *node) lookAtEPMD() error {
	conn, err := net.DialTimeout("tcp", testserver.Loopback(n.ports.epmd), time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// command runs the node, with its configuration written.
func (n *node) command() ([]string, error) {
	config := strings.Join(append([]string{
		"listeners.tcp.1 = " + n.addr(), "log.console.level = warning", "vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}, n.config...), "\n") + "\n"
	in := func(name string) string { return filepath.Join(n.dir, name) }
	for name, text := range map[string]string{"rabbitmq.conf": config, "enabled_plugins": "[].\n"} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{
		"env", "HOME=" + n.dir, // of the cookie
		fmt.Sprintf("RABBITMQ_NODENAME=oncemill%d@localhost", n.ports.amqp),
		"RABBITMQ_MNESIA_BASE=" + in("data"), "RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"), "RABBITMQ_FEATURE_FLAGS_FILE=" + in("flags"),
		"RABBITMQ_CONF_ENV_FILE=" + in("none"), "RABBITMQ_PID_FILE=" + in("pid"), "RABBITMQ_LOGS=-",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.ports.nodes), "ERL_EPMD_PORT=" + strconv.Itoa(n.ports.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		// It looks for consumers over their consumer_timeout every half second, not every minute.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2 -kernel inet_dist_use_interface {127,0,0,1} " +
			"-rabbit channel_tick_interval 500",
		"RUNNING_UNDER_SYSTEMD=true", // the script becomes the node, so that a kill is the node's
		n.program,
	}, nil
}

func (n *node) addr() string { return testserver.Loopback(n.ports.amqp) }

// look says hello as a client of AMQP 0-9-1 does, and wants a method frame: Connection.Start.
func (n *node) look() error {
	conn, err := net.DialTimeout("tcp", n.addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	frame := make([]byte, 11)
	if _, err := conn.Read(frame); err != nil {
		return err
	}
	if !bytes.Equal(frame[7:], []byte{0, 10, 0, 10}) || frame[0] != 1 {
		return errors.New("it does not speak AMQP 0-9-1")
	}
	return nil
}

var banner = regexp.MustCompile(`RabbitMQ (\d[\d.]+)`)

// version is what the node says of itself when it starts.
func (s *Server) version() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	found := banner.FindSubmatch(text)
	if err != nil || found == nil {
		return "of unknown version"
	}
	return string(found[1])
}
