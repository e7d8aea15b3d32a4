package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaPatience bounds the wait for a broker: a Java program on a busy machine.
const kafkaPatience = 3 * time.Minute

// A Server is one Apache Kafka broker in KRaft mode, its own controller, for one test or for several.
type Server struct {
	Addr string // host:port

	*testserver.Owned
	t      testing.TB
	broker kafkaBroker
}

// Start starts a new, empty broker for the test. The config adds lines of server.properties, "name=value", which win
// over those of the test server. It takes some seconds: a test that does not need a broker of its own uses
// [SharedKafka].
//
// The broker's jars are fetched through Maven into the user's cache folder, once. If Java is missing, or the jars
// cannot be had, the test is skipped, and fails with CI=true.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, broker: newKafkaBroker(t, t.TempDir(), config)}
	s.Owned = testserver.Own(t, "Kafka", "", s.broker.start)
	s.Owned.Start(s.broker.takePorts)
	s.Addr = s.broker.addr()
	testserver.Record(t, kafkaRecord)
	return s
}

// errNotJoined is what a broker is said to be until its controller lets it in.
var errNotJoined = errors.New("the broker has not joined its cluster")

// kafkaRecord is the line that tells which broker was used.
const kafkaRecord = "kafka " + kafkaVersion + " (KRaft)"

// newKafkaBroker finds what a broker needs, or ends the test.
func newKafkaBroker(t testing.TB, dir string, config []string) kafkaBroker {
	t.Helper()
	testserver.Wanted(t)
	java, err := exec.LookPath("java")
	if err != nil {
		testserver.Missing(t, "java is not in PATH, which Kafka needs (Debian: apt-get install default-jre-headless)")
	}
	jars, err := kafkaJars()
	if err != nil {
		testserver.Missing(t, "Kafka cannot be had: %v (Debian: apt-get install maven)", err)
	}
	return kafkaBroker{java: java, jars: jars, dir: dir, config: config}
}

// Client returns a new client of the broker, which is closed when the test ends.
func (s *Server) Client(opts ...kgo.Opt) *kgo.Client {
	s.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.Addr)}, opts...)...)
	if err != nil {
		s.t.Fatalf("testserver: Kafka client: %v", err)
	}
	s.t.Cleanup(cl.Close)
	return cl
}

// CreateTopic creates a topic and waits until each partition has a leader. The broker creates none by itself.
func (s *Server) CreateTopic(name string, partitions int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), kafkaPatience)
	defer cancel()
	adm := kadm.NewClient(s.Client(kgo.MetadataMinAge(10 * time.Millisecond))) // else it would not look again for 5 s
	// It is refused while the broker is not a member of its cluster.
	err := testserver.Until(ctx, func() error {
		if _, err := adm.CreateTopic(ctx, int32(partitions), 1, nil, name); !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("testserver: create topic %s: %v", name, err)
	}
	for ctx.Err() == nil {
		if topics, err := adm.ListTopics(ctx, name); err == nil && led(topics[name], partitions) {
			return
		}
		testserver.Pause()
	}
	s.t.Fatalf("testserver: topic %s has no leader after %v", name, kafkaPatience)
}

func led(topic kadm.TopicDetail, partitions int) bool {
	for _, p := range topic.Partitions {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return topic.Err == nil && len(topic.Partitions) == partitions
}

// Pause stops the broker with SIGSTOP: connections stay open, and nothing is answered until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.Process().Pause(); err != nil {
		s.t.Fatalf("testserver: pause Kafka: %v", err)
	}
}

// Resume lets a paused broker go on.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.Process().Resume(); err != nil {
		s.t.Fatalf("testserver: resume Kafka: %v", err)
	}
}

// A kafkaBroker is a broker's folder, ports and program.
type kafkaBroker struct {
	java, jars, dir  string
	config           []string
	port, controller int
}

func (b *kafkaBroker) takePorts(port int) (err error) {
	b.port = port
	b.controller, err = testserver.FreePort()
	return err
}

func (b *kafkaBroker) addr() string { return testserver.Loopback(b.port) }

// properties is the broker's configuration: small, for one node, and quick about members that come and go.
func (b *kafkaBroker) properties() string {
	return strings.Join(append([]string{
		"process.roles=broker,controller",
		"node.id=1",
		"controller.quorum.voters=1@" + testserver.Loopback(b.controller),
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listeners=PLAINTEXT://" + testserver.Loopback(b.port) + ",CONTROLLER://" + testserver.Loopback(b.controller),
		"advertised.listeners=PLAINTEXT://" + testserver.Loopback(b.port),
		"log.dirs=" + b.data(),
		"log.segment.bytes=16777216",
		"log.index.size.max.bytes=65536",
		"log.cleaner.dedupe.buffer.size=2097152",
		"num.network.threads=2",
		"num.io.threads=4",
		"auto.create.topics.enable=false",
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=1",
		"group.initial.rebalance.delay.ms=0",
		"group.min.session.timeout.ms=100",
		// A broker that was killed is let in again when its old session has ended.
		"broker.session.timeout.ms=3000",
		"broker.heartbeat.interval.ms=300",
	}, b.config...), "\n") + "\n"
}

func (b *kafkaBroker) data() string { return filepath.Join(b.dir, "data") }

// prepare writes the configuration and formats the storage, unless that was done.
func (b *kafkaBroker) prepare() (properties string, err error) {
	properties = filepath.Join(b.dir, "server.properties")
	if err := os.WriteFile(properties, []byte(b.properties()), 0o644); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(b.data(), "meta.properties")); err == nil {
		return properties, nil
	}
	format := b.command("kafka.tools.StorageTool", "format", "-t", "b25jZW1pbGwtdGVzdHMhIQ", "-c", properties)
	if out, err := exec.Command(format[0], format[1:]...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("format Kafka's storage: %w\n%s", err, out)
	}
	return properties, nil
}

// command is how a program of the broker is run: with a small heap, and compiled for a short life.
func (b *kafkaBroker) command(class string, args ...string) []string {
	return append([]string{
		b.java, "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djava.awt.headless=true", "-Djava.io.tmpdir=" + b.dir, "-Dlog4j2.level=WARN",
		"-cp", filepath.Join(b.jars, "*"), class,
	}, args...)
}

// start runs the broker and waits until it answers.
func (b *kafkaBroker) start() (*testserver.Process, error) {
	properties, err := b.prepare()
	if err != nil {
		return nil, err
	}
	return testserver.StartServer(b.dir, b.command("kafka.Kafka", properties), kafkaPatience, b.look)
}

// look succeeds when the broker is a member of its cluster, and so lets clients in, and coordinates groups. It asks
// once, with a client of its own, which has no memory of how it was refused and no pauses between retries.
func (b *kafkaBroker) look() error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr()), kgo.RequestRetries(0), kgo.RequestTimeoutOverhead(time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	m, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if len(m.Brokers) == 0 {
		return errNotJoined
	}
	// The first question makes the topic that groups keep their offsets in.
	return kadm.NewClient(cl).FindGroupCoordinators(ctx, "oncemill-probe").Error()
}
