package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// kafkaVersion is the Apache Kafka that tests run. It needs Java 17 or newer.
const kafkaVersion = "4.3.1"

// kafkaPOM asks Maven for the broker, and for what writes its log (SLF4J 1.7 to Log4j 2, in the version of the broker's).
const kafkaPOM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncemill</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>` + kafkaVersion + `</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
`

// copyDependencies is the goal of Maven that puts the jars into a folder.
const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

// errNoMaven says that there are no jars, and nothing to get them with.
var errNoMaven = errors.New("mvn is not in PATH, and Kafka's jars are not in the user's cache")

// kafkaJars returns the folder of the broker's jars, which it fetches once for all later runs. Asked again in the same
// process, it gives the same answer.
var kafkaJars = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return fetchKafka(filepath.Join(cache, "oncemill"))
})

// fetchKafka fetches the jars into a folder below base, unless they are there. The folder comes into being at once, with
// all of them, so that one that is there is complete. Processes that want the same wait for one another: Maven's own
// repository does not bear being filled by two at once.
func fetchKafka(base string) (string, error) {
	dir := filepath.Join(base, "kafka-"+kafkaVersion)
	if there(dir) {
		return dir, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", errNoMaven
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	unlock, err := testserver.LockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if there(dir) {
		return dir, nil
	}
	part, err := os.MkdirTemp(base, "kafka-"+kafkaVersion+"-part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if err := runMaven(mvn, part); err != nil {
		return "", err
	}
	return dir, os.Rename(filepath.Join(part, "jars"), dir)
}

func there(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// runMaven puts the jars into the folder "jars" of part. Maven's output goes to stderr: it shows that a download goes
// on.
func runMaven(mvn, part string) error {
	pom := filepath.Join(part, "pom.xml")
	if err := os.WriteFile(pom, []byte(kafkaPOM), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "testserver: Maven fetches Apache Kafka %s, about 50 MB, once\n", kafkaVersion)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mvn, "-B", "-f", pom, copyDependencies,
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(part, "jars"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch Kafka's jars with Maven: %w", err)
	}
	return nil
}
