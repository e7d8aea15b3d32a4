package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// mostMetrics bounds what is read of one address.
const mostMetrics = 32 << 20

// Prometheus returns a Config.Counters that reads the metrics of processes, in Prometheus's text format, and adds them
// up. A nil client is http.DefaultClient.
func Prometheus(client *http.Client, urls ...string) func(context.Context) ([]Counter, error) {
	if client == nil {
		client = http.DefaultClient
	}
	return func(ctx context.Context) (all []Counter, err error) {
		for _, url := range urls {
			some, err := scrape(ctx, client, url)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
}

func scrape(ctx context.Context, client *http.Client, url string) ([]Counter, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("console: metrics: %w", err)
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	answer, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("console: metrics: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("console: metrics: %s: %s", r.URL.Redacted(), answer.Status)
	}
	return readMetrics(io.LimitReader(answer.Body, mostMetrics))
}

// readMetrics reads the counters of claims and failures, and leaves out everything else.
func readMetrics(text io.Reader) (all []Counter, err error) {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ours := strings.CutPrefix(lines.Text(), "oncemill_claims_total{")
		failures := false
		if !ours {
			if rest, failures = strings.CutPrefix(lines.Text(), "oncemill_failures_total{"); !failures {
				continue
			}
		}
		labels, value, ok := readLabels(rest)
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ") // a timestamp may follow
		n, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("console: metrics: cannot read %q", lines.Text())
		}
		c := Counter{
			Group: labels["messaging_consumer_group_name"], Handler: labels["oncemill_handler"],
			Outcome: labels["oncemill_outcome"], Cause: labels["oncemill_duplicate_cause"], Count: int64(n),
		}
		if failures {
			c.Outcome = Failed
			if labels["oncemill_result"] == Parked {
				c.Outcome = Parked
			}
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("console: metrics: %w", err)
	}
	return all, nil
}

// readLabels reads labels up to the closing brace, and returns what follows.
func readLabels(s string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		s = strings.TrimLeft(s, ", ")
		if after, closed := strings.CutPrefix(s, "}"); closed {
			return labels, after, true
		}
		name, after, found := strings.Cut(s, `="`)
		if !found {
			return nil, "", false
		}
		var value strings.Builder
		at := 0
		for ; at < len(after) && after[at] != '"'; at++ {
			if after[at] == '\\' && at+1 < len(after) {
				at++
				if after[at] == 'n' {
					value.WriteByte('\n')
					continue
				}
			}
			value.WriteByte(after[at])
		}
		if at == len(after) {
			return nil, "", false
		}
		labels[name], s = value.String(), after[at+1:]
	}
}
