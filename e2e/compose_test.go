package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

var root = ".."

// load reads a compose file as the Compose command does.
func load(ctx context.Context, path string, profiles ...string) (*types.Project, error) {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithProfiles(profiles))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(ctx)
}

func compose(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	project, err := load(t.Context(), filepath.Join(root, "compose.yaml"), profiles...)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// PostgreSQL's versions have two parts.
var exactTag = regexp.MustCompile(`^(postgres:\d+\.\d+|[a-z0-9/-]+:\d+\.\d+\.\d+)(-alpine)?$`)

// problems says what is wrong with a service, a sentence each.
func problems(s types.ServiceConfig) (found []string) {
	say := func(format string, args ...any) { found = append(found, s.Name+" "+fmt.Sprintf(format, args...)) }
	if !exactTag.MatchString(s.Image) {
		say("has the image %s, which is no exact version", s.Image)
	}
	if h := s.HealthCheck; h == nil || h.Disable || len(h.Test) < 2 || h.Interval == nil || h.Timeout == nil ||
		h.Retries == nil {
		say("has no health check, or none with an interval, a timeout and retries")
	}
	for _, p := range s.Ports {
		if p.HostIP != "127.0.0.1" {
			say("publishes port %d on %q, not on the loopback interface only", p.Target, p.HostIP)
		}
	}
	for _, v := range s.Volumes {
		if v.Type != types.VolumeTypeBind {
			continue
		}
		if _, err := os.Stat(v.Source); err != nil {
			say("mounts %s: %v", v.Source, err)
		}
		if !v.ReadOnly {
			say("may write to %s", v.Source)
		}
	}
	for other, d := range s.DependsOn {
		if d.Condition != types.ServiceConditionHealthy {
			say("does not wait until %s is healthy", other)
		}
	}
	if s.NetworkMode == "host" || s.Privileged {
		say("has more than its own network and rights")
	}
	return found
}

func TestCompose_ServicesArePinnedCheckedAndLocal(t *testing.T) {
	t.Parallel()
	for _, s := range compose(t, "*").Services {
		for _, p := range problems(s) {
			t.Error(p)
		}
	}
}

func TestCompose_DefaultIsSmallAndTheRestHasProfiles(t *testing.T) {
	t.Parallel()
	for profile, want := range map[string]string{
		"":              "nats postgres redis",
		"kafka":         "kafka nats postgres redis",
		"mysql":         "mysql nats postgres redis",
		"dynamodb":      "dynamodb nats postgres redis",
		"cassandra":     "cassandra nats postgres redis",
		"observability": "lgtm nats orders-nats orders-service postgres redis",
		"examples":      "kafka lgtm nats orders-kafka orders-nats orders-service postgres redis",
	} {
		names := compose(t, profile).ServiceNames()
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("profile %q has %s, want %s", profile, got, want)
		}
	}
}

// The defaults of the examples' flags, and what Oncemill needs of the servers.
func TestCompose_ServersAreWhereExamplesLookAndSetUpAsDocumented(t *testing.T) {
	t.Parallel()
	services := compose(t, "*").Services
	for name, port := range map[string]string{
		"redis": "6379", "nats": "4222", "postgres": "5432", "kafka": "9092", "lgtm": "3000 4317 4318 9090",
		"mysql": "3306", "dynamodb": "8000", "cassandra": "9042",
	} {
		var published []string
		for _, p := range services[name].Ports {
			published = append(published, p.Published)
		}
		if got := strings.Join(published, " "); got != port {
			t.Errorf("%s is published at %s, want %s", name, got, port)
		}
	}
	for name, words := range map[string]string{
		"redis": "--maxmemory-policy noeviction --appendonly yes", "nats": "-js", "postgres": "wal_level=logical",
		"mysql": "--innodb-flush-log-at-trx-commit=1 --sync-binlog=1", "dynamodb": "-dbPath /data",
	} {
		if got := strings.Join(services[name].Command, " "); !strings.Contains(got, words) {
			t.Errorf("%s is started by %q, which lacks %s", name, got, words)
		}
	}
	if services["kafka"].Environment["KAFKA_PROCESS_ROLES"] == nil {
		t.Error("kafka is not its own controller")
	}
}

// Every example of the repository that needs servers runs against those of the file, with flags that it has.
func TestCompose_ExamplesExistAndTheirServersToo(t *testing.T) {
	t.Parallel()
	project := compose(t, "*")
	seen := 0
	for _, s := range project.Services {
		command := strings.Join(s.Command, " ")
		match := regexp.MustCompile(`\./examples/([a-z]+) `).FindStringSubmatch(command)
		if match == nil {
			continue
		}
		seen++
		if _, err := os.Stat(filepath.Join(root, "examples", match[1], "main.go")); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		arguments := command[strings.Index(command, "exec "):]
		for _, flag := range regexp.MustCompile(` -([a-z]+) `).FindAllStringSubmatch(arguments, -1) {
			if !mentioned(t, `"`+flag[1]+`"`, match[1], "internal/billing") {
				t.Errorf("%s: the example %s has no flag -%s", s.Name, match[1], flag[1])
			}
		}
		servers := regexp.MustCompile(`(?:@|//|-brokers )([a-z]+):\d+`)
		for _, address := range servers.FindAllStringSubmatch(command, -1) {
			if _, ok := s.DependsOn[address[1]]; !ok {
				t.Errorf("%s uses %s and does not wait for it", s.Name, address[1])
			}
		}
		if s.Environment["OTEL_SERVICE_NAME"] == nil || *s.Environment["OTEL_SERVICE_NAME"] != s.Name {
			t.Errorf("%s does not call itself so in its telemetry", s.Name)
		}
	}
	if seen != 3 {
		t.Errorf("%d examples are run, want 3", seen)
	}
}

// mentioned says whether Go files of these folders of examples have a text.
func mentioned(t *testing.T, text string, folders ...string) bool {
	t.Helper()
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(root, "examples", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(source), text) {
				return true
			}
		}
	}
	return false
}

// What is mounted is where the mounted configuration looks for it.
func TestCompose_GrafanaAndPrometheusFindTheirFiles(t *testing.T) {
	t.Parallel()
	lgtm := compose(t, "*").Services["lgtm"]
	mounted := map[string]string{}
	for _, v := range lgtm.Volumes {
		mounted[v.Target] = v.Source
	}
	var prometheus struct {
		RuleFiles []string `yaml:"rule_files"`
	}
	var grafana struct {
		Providers []struct {
			Options struct{ Path string }
		}
	}
	readYAML(t, mounted["/otel-lgtm/prometheus.yaml"], &prometheus)
	readYAML(t, mounted["/otel-lgtm/grafana/conf/provisioning/dashboards/oncemill.yaml"], &grafana)
	if len(prometheus.RuleFiles) != 2 || len(grafana.Providers) != 1 {
		t.Fatalf("%+v, %+v", prometheus, grafana)
	}
	for _, path := range append(prometheus.RuleFiles, grafana.Providers[0].Options.Path) {
		if mounted[path] == "" {
			t.Errorf("%s is not mounted", path)
		}
	}
	home := *lgtm.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if _, err := os.Stat(filepath.Join(mounted[filepath.Dir(home)], filepath.Base(home))); err != nil {
		t.Errorf("the first dashboard: %v", err)
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestProblems_EachIsFound(t *testing.T) {
	t.Parallel()
	const good = `
name: test
services:
  redis:
    image: redis:8.2.1-alpine
    healthcheck: {test: ["CMD", "true"], interval: 5s, timeout: 3s, retries: 3}
  nats:
    image: nats:2.12.12-alpine
    depends_on: {redis: {condition: service_healthy}}
    volumes: [".:/here:ro"]
    ports: ["127.0.0.1:4222:4222"]
    healthcheck: {test: ["CMD", "true"], interval: 5s, timeout: 3s, retries: 3}
`
	dir := t.TempDir()
	for i, tc := range []struct{ from, to, want string }{
		{"", "", ""},
		{"nats:2.12.12-alpine", "nats:2.12-alpine", "no exact version"},
		{"nats:2.12.12-alpine", "nats", "no exact version"},
		{"nats:2.12.12-alpine", "nats:latest", "no exact version"},
		{"127.0.0.1:4222", "4222", "loopback"},
		{"127.0.0.1:4222", "0.0.0.0:4222", "loopback"},
		{`["CMD", "true"]`, `["NONE"]`, "no health check"},
		{"interval: 5s, ", "", "no health check"},
		{"service_healthy", "service_started", "does not wait"},
		{".:/here", "./gone:/here", "mounts"},
		{":ro", "", "may write"},
		{"image: nats", "network_mode: host\n    image: nats", "own network"},
		{"interval", "intervall", "load"},
	} {
		path := filepath.Join(dir, fmt.Sprintf("%d.yaml", i))
		text := strings.Replace(good, tc.from, tc.to, 1)
		if tc.from == "127.0.0.1:4222" && tc.to == "4222" {
			text = strings.Replace(good, "127.0.0.1:4222:4222", "4222:4222", 1)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		project, err := load(t.Context(), path, "*")
		if tc.want == "load" {
			if err == nil {
				t.Error("an unknown key was accepted")
			}
			continue
		}
		if err != nil {
			t.Errorf("%s → %s: %v", tc.from, tc.to, err)
			continue
		}
		var found []string
		for _, s := range project.Services {
			found = append(found, problems(s)...)
		}
		if text := strings.Join(found, "; "); (tc.want == "") != (text == "") || !strings.Contains(text, tc.want) {
			t.Errorf("%s → %s: found %q, want %q", tc.from, tc.to, text, tc.want)
		}
	}
}
