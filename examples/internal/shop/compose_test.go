package shop

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A service of compose.yaml, as text.
type service struct{ name, text string }

var (
	serviceName = regexp.MustCompile(`(?m)^  ([a-z]+):\n`)
	exactTag    = regexp.MustCompile(`(?m)^    image: (postgres:\d+\.\d+|[a-z/]+:\d+\.\d+\.\d+)(-alpine)?$`) // PostgreSQL's versions have two parts
	portLine    = regexp.MustCompile(`(?m)^      - "(\S+):(\d+):\d+"$`)
)

// services cuts compose.yaml, which is written in one style: two blanks a level, services between two top-level keys.
func services(t *testing.T, text string) []service {
	t.Helper()
	_, text, found := strings.Cut(text, "\nservices:\n")
	text, _, found2 := strings.Cut(text, "\nvolumes:\n")
	if !found || !found2 {
		t.Fatal("compose.yaml has no services, followed by volumes")
	}
	var all []service
	starts := serviceName.FindAllStringSubmatchIndex(text, -1)
	for i, s := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		all = append(all, service{text[s[2]:s[3]], text[s[1]:end]})
	}
	return all
}

// problem says what is wrong with a service, or "".
func (s service) problem() string {
	_, ports, hasPorts := strings.Cut(s.text, "\n    ports:\n")
	published := portLine.FindAllStringSubmatch(ports, -1)
	switch {
	case !exactTag.MatchString(s.text):
		return "its image has no exact version"
	case !strings.Contains(s.text, "\n    healthcheck:\n") || !strings.Contains(s.text, "\n      test: ["):
		return "it has no health check"
	case !hasPorts || len(published) != 1:
		return "it does not publish one port"
	case published[0][1] != "127.0.0.1":
		return "its port is published on " + published[0][1] + ", not on the loopback interface only"
	}
	return ""
}

func TestCompose_ServicesArePinnedCheckedAndLocal(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for _, s := range services(t, string(text)) {
		if p := s.problem(); p != "" {
			t.Errorf("%s: %s", s.name, p)
			continue
		}
		ports[s.name] = portLine.FindStringSubmatch(s.text)[2]
	}
	// The defaults of the examples' flags.
	for name, port := range map[string]string{"redis": "6379", "nats": "4222", "postgres": "5432", "kafka": "9092"} {
		if ports[name] != port {
			t.Errorf("%s is published at %q, want %s", name, ports[name], port)
		}
	}
	for _, want := range []string{`"noeviction"`, `"--appendonly", "yes"`, `"-js"`, `"wal_level=logical"`, "KAFKA_PROCESS_ROLES"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("compose.yaml lacks %s", want)
		}
	}
	if strings.Contains(string(text), "\t") || strings.Contains(string(text), "latest") {
		t.Error("compose.yaml has a tab, or names the latest of something")
	}
}

func TestCompose_EachProblemIsFound(t *testing.T) {
	t.Parallel()
	const good = "\nservices:\n  nats:\n    image: nats:2.12.8-alpine\n    ports:\n      - \"127.0.0.1:4222:4222\"\n    healthcheck:\n      test: [\"CMD\"]\n\nvolumes:\n"
	for broken, what := range map[string][2]string{
		"no exact version": {"nats:2.12.8-alpine", "nats:2.12-alpine"},
		"no exact":         {"nats:2.12.8-alpine", "nats"},
		"exact version":    {"nats:2.12.8-alpine", "postgres:17-alpine"},
		"no health check":  {"healthcheck", "health"},
		"one port":         {"ports:", "expose:"},
		"on 0.0.0.0":       {"127.0.0.1", "0.0.0.0"},
		"publish one port": {"127.0.0.1:", ""},
	} {
		all := services(t, strings.Replace(good, what[0], what[1], 1))
		if len(all) != 1 || !strings.Contains(all[0].problem(), broken) {
			t.Errorf("%s: %+v", broken, all)
		}
	}
	if all := services(t, good); len(all) != 1 || all[0].name != "nats" || all[0].problem() != "" {
		t.Errorf("%+v", all)
	}
}
