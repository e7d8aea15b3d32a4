package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ErrNoMaven says that there are no jars, and nothing to get them with.
var ErrNoMaven = errors.New("mvn is not in PATH, and the jars are not in the user's cache")

// copyDependencies is the goal of Maven that puts the jars into a folder.
const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

// Jars returns the folder with the jars of a Java program, which Maven fetches into the user's cache once for all later
// runs. The name has the program's version. Each dependency is GROUP:ARTIFACT:VERSION.
func Jars(name string, dependencies ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return fetchJars(filepath.Join(cache, "oncemill"), name, dependencies)
}

// fetchJars fetches the jars into a folder below base, unless they are there. The folder comes into being at once, with
// all of them, so that one that is there is complete. Processes wait for one another, whatever they want: Maven's own
// repository does not bear being filled by two at once.
func fetchJars(base, name string, dependencies []string) (string, error) {
	dir := filepath.Join(base, name)
	there := func() bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	if there() {
		return dir, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", ErrNoMaven
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	unlock, err := LockFile(filepath.Join(base, "maven.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if there() {
		return dir, nil
	}
	part, err := os.MkdirTemp(base, name+"-part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if err := runMaven(mvn, part, name, dependencies); err != nil {
		return "", err
	}
	return dir, os.Rename(filepath.Join(part, "jars"), dir)
}

// runMaven puts the jars into the folder "jars" of part. Maven's output goes to stderr: it shows that a download goes
// on.
func runMaven(mvn, part, name string, dependencies []string) error {
	file := filepath.Join(part, "pom.xml")
	if err := os.WriteFile(file, []byte(pom(name, dependencies)), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "testserver: Maven fetches %s, about 50 MB, once\n", name)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mvn, "-B", "-f", file, copyDependencies,
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(part, "jars"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch the jars of %s with Maven: %w", name, err)
	}
	return nil
}

func pom(name string, dependencies []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncemill</groupId>
  <artifactId>%s-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
`, name)
	for _, dependency := range dependencies {
		part := strings.Split(dependency, ":")
		fmt.Fprintf(&b, "    <dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>"+
			"</dependency>\n", part[0], part[1], part[2])
	}
	b.WriteString("  </dependencies>\n</project>\n")
	return b.String()
}
