package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// serve serves HTTP on a free port of the loopback interface until the test ends.
func serve(t *testing.T, h http.Handler) (address string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// startProgram starts a program that serves HTTP, and waits until it says that it is ready.
func startProgram(t *testing.T, ready, program string, args ...string) *testserver.Process {
	t.Helper()
	p, err := testserver.StartProgram(t.TempDir(), program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	until(t, 3*time.Minute, program+" to be ready", func() bool {
		select {
		case <-p.Ended():
			t.Fatalf("%s ended", program)
		default:
		}
		resp, err := http.Get(ready)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// note adds a line to the file in which `make test` collects which servers were used, and which were not.
func note(t *testing.T, line string) {
	t.Helper()
	name := os.Getenv("ONCEMILL_TEST_SERVERS_FILE")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// A promServer is a real server with Oncemill's rules.
type promServer struct {
	t       *testing.T
	address string
}

// startPrometheus starts one that scrapes the target, twice a second.
func startPrometheus(t *testing.T, target string) *promServer {
	t.Helper()
	program := testserver.NeedProgram(t, "prometheus", howToGetPrometheus)
	folder, err := filepath.Abs(rulesFolder)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q, %q]
scrape_configs: [{job_name: billing, static_configs: [{targets: [%q]}]}]
`, filepath.Join(folder, "rules.yaml"), filepath.Join(folder, "alerts.yaml"), target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &promServer{t, freeAddress(t)}
	startProgram(t, "http://"+p.address+"/-/ready", program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address, "--enable-feature=exemplar-storage", "--log.level=warn")
	var build struct{ Version string }
	if err := p.get("status/buildinfo", nil, &build); err != nil {
		t.Fatal(err)
	}
	note(t, "prometheus "+build.Version)
	return p
}

// get asks the server's API. The error is Prometheus's own, such as of its parser.
func (p *promServer) get(path string, query url.Values, into any) error {
	p.t.Helper()
	resp, err := http.Get("http://" + p.address + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		p.t.Fatal(err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s", answer.Error)
	}
	return nil
}

// values are what a query gives at this moment.
func (p *promServer) values(query string) ([]float64, error) {
	p.t.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.get("query", url.Values{"query": {query}}, &data); err != nil {
		return nil, err
	}
	var all []float64
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// An exemplar of a series.
type exemplar struct {
	Series map[string]string
	Labels map[string]string
}

// exemplars are those of all series of a query, as Grafana asks for them.
func (p *promServer) exemplars(query string) []exemplar {
	p.t.Helper()
	var data []struct {
		SeriesLabels map[string]string `json:"seriesLabels"`
		Exemplars    []struct{ Labels map[string]string }
	}
	now := time.Now()
	at := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).Unix(), 10) }
	if err := p.get("query_exemplars", url.Values{"query": {query}, "start": {at(-time.Hour)}, "end": {at(time.Minute)}}, &data); err != nil {
		p.t.Fatal(err)
	}
	var all []exemplar
	for _, d := range data {
		for _, e := range d.Exemplars {
			all = append(all, exemplar{d.SeriesLabels, e.Labels})
		}
	}
	return all
}
