package cassandratest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/internal/testserver"
)

// version is the Apache Cassandra that tests run. It needs Java 17, or 11.
const version = "5.0.3"

// startLimit bounds the wait for a node: a large Java program on a busy machine.
const startLimit = 6 * time.Minute

// jars returns the folder of the node's jars. Asked again in the same process, it gives the same answer.
var jars = sync.OnceValues(func() (string, error) {
	return testserver.Jars("cassandra-"+version, "org.apache.cassandra:cassandra-all:"+version)
})

// java returns a program that can run the node, or "".
var java = sync.OnceValue(func() string {
	found, _ := filepath.Glob("/usr/lib/jvm/java-17-openjdk-*/bin/java")
	if path, err := exec.LookPath("java"); err == nil {
		found = append(found, path)
	}
	for _, path := range found {
		said, _ := exec.Command(path, "-version").CombinedOutput()
		if strings.Contains(string(said), `version "17.`) || strings.Contains(string(said), `version "11.`) {
			return path
		}
	}
	return ""
})

// A node is a node's folder, ports and program.
type node struct {
	java, jars, dir string
	config          []string
	port, storage   int
}

// newNode finds what a node needs, or ends the test.
func newNode(t testing.TB, dir string, config []string) node {
	t.Helper()
	testserver.Wanted(t)
	n := node{java: java(), dir: dir, config: config}
	if n.java == "" {
		testserver.Missing(t, "there is no Java 17 or 11, which Cassandra needs (Debian: apt-get install "+
			"openjdk-17-jre-headless)")
	}
	var err error
	if n.jars, err = jars(); err != nil {
		testserver.Missing(t, "Cassandra cannot be had: %v (Debian: apt-get install maven)", err)
	}
	return n
}

func (n *node) takePorts(port int) (err error) {
	n.port = port
	n.storage, err = testserver.FreePort()
	return err
}

func (n *node) addr() string { return testserver.Loopback(n.port) }

// yaml is the node's configuration. The node is alone, is patient on a busy machine, and has one user, whose password
// is the user's name. Later lines of the test win.
func (n *node) yaml() string {
	settings := map[string]string{
		"cluster_name":                   "oncemill",
		"num_tokens":                     "1",
		"partitioner":                    "org.apache.cassandra.dht.Murmur3Partitioner",
		"data_file_directories":          "[" + filepath.Join(n.dir, "data") + "]",
		"commitlog_directory":            filepath.Join(n.dir, "commitlog"),
		"saved_caches_directory":         filepath.Join(n.dir, "caches"),
		"hints_directory":                filepath.Join(n.dir, "hints"),
		"cdc_raw_directory":              filepath.Join(n.dir, "cdc"),
		"commitlog_sync":                 "periodic",
		"commitlog_sync_period":          "1000ms",
		"listen_address":                 "127.0.0.1",
		"rpc_address":                    "127.0.0.1",
		"native_transport_port":          fmt.Sprint(n.port),
		"storage_port":                   fmt.Sprint(n.storage),
		"endpoint_snitch":                "SimpleSnitch",
		"seed_provider":                  seeds(n.storage),
		"authenticator":                  "PasswordAuthenticator",
		"authorizer":                     "CassandraAuthorizer",
		"permissions_validity":           "0ms",
		"auto_snapshot":                  "false",
		"hinted_handoff_enabled":         "false",
		"memtable_allocation_type":       "heap_buffers",
		"key_cache_size":                 "1MiB",
		"read_request_timeout":           "120s",
		"range_request_timeout":          "120s",
		"write_request_timeout":          "120s",
		"cas_contention_timeout":         "120s",
		"request_timeout":                "120s",
		"concurrent_compactors":          "1",
		"disk_failure_policy":            "stop",
		"commit_failure_policy":          "stop",
		"user_defined_functions_enabled": "false",
	}
	for _, line := range n.config {
		name, value, _ := strings.Cut(line, ": ")
		if settings[name] = value; value == "" {
			delete(settings, name)
		}
	}
	var b strings.Builder
	for name, value := range settings {
		fmt.Fprintf(&b, "%s: %s\n", name, value)
	}
	return b.String()
}

func seeds(port int) string {
	return fmt.Sprintf(`[{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{seeds: "%s"}]}]`,
		testserver.Loopback(port))
}

// logback lets the node write what is wrong.
const logback = `<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
`

// What Java 17 keeps to itself, and Cassandra uses.
var (
	exports = []string{
		"java.base/jdk.internal.misc", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
		"java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql", "java.base/java.lang.ref",
		"java.base/jdk.internal.ref", "jdk.unsupported/sun.misc",
	}
	opens = []string{
		"java.base/java.lang.module", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref",
		"java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
		"java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "java.base/java.io", "java.base/java.nio",
		"java.base/java.util.concurrent", "java.base/java.util", "java.base/java.util.concurrent.atomic",
		"java.base/java.lang", "java.base/java.math", "java.base/java.lang.reflect", "java.base/java.net",
		"jdk.management/com.sun.management.internal",
	}
)

// command is how the node is run: with a small heap, compiled for a short life, and without waiting for others.
func (n *node) command() []string {
	command := []string{
		n.java, "-Xms200m", "-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Xshare:auto", "-Djava.awt.headless=true", "-Djava.io.tmpdir=" + n.dir, "-Djava.security.manager=allow",
		"-Dcassandra.config=file://" + filepath.Join(n.dir, "conf", "cassandra.yaml"),
		"-Dcassandra.storagedir=" + n.dir, "-Dcassandra-foreground=yes",
		"-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100",
		"-Dcassandra.superuser_setup_delay_ms=0", "-Dcassandra.auth_bcrypt_gensalt_log2_rounds=4",
	}
	for _, name := range exports {
		command = append(command, "--add-exports="+name+"=ALL-UNNAMED")
	}
	for _, name := range opens {
		command = append(command, "--add-opens="+name+"=ALL-UNNAMED")
	}
	return append(command, "-cp", filepath.Join(n.dir, "conf")+":"+filepath.Join(n.jars, "*"),
		"org.apache.cassandra.service.CassandraDaemon")
}

// prepare writes the configuration.
func (n *node) prepare() error {
	conf := filepath.Join(n.dir, "conf")
	return errors.Join(os.MkdirAll(conf, 0o755),
		os.WriteFile(filepath.Join(conf, "cassandra.yaml"), []byte(n.yaml()), 0o644),
		os.WriteFile(filepath.Join(conf, "logback.xml"), []byte(logback), 0o644))
}

// start runs the node and waits until it answers.
func (n *node) start() (*testserver.Process, error) {
	if err := n.prepare(); err != nil {
		return nil, err
	}
	return testserver.StartServer(n.dir, n.command(), startLimit, n.look)
}

// look reports whether the node lets its user in.
func (n *node) look() error {
	session, err := cluster(n.addr()).CreateSession()
	if err == nil {
		session.Close()
	}
	return err
}

// cluster is how clients connect to a node.
func cluster(addr string) *gocql.ClusterConfig {
	c := gocql.NewCluster(addr)
	c.Authenticator = gocql.PasswordAuthenticator{Username: User, Password: User}
	c.Timeout, c.ConnectTimeout = testserver.WaitLimit, testserver.WaitLimit
	c.Events.DisableSchemaEvents = true // their goroutines may outlive a session by a minute
	c.ReconnectInterval = 50 * time.Millisecond
	c.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 3, Interval: 50 * time.Millisecond}
	return c
}
