package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// changing is what differs between two runs of a command: times, and lines of the audit log.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z|` +
	`(just now|\d+ (ms|s|min|h|days)( ago)?) *|\{"time".*\n`)

// TestPage_TranscriptsAreTrue runs the commands of docs/command.md.
func TestPage_TranscriptsAreTrue(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "records.db")
	db, err := sqliteoutbox.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("ONCEMILL_STORE", "sqlite:"+path)
	if err := migrate("sqlite:" + path); err != nil {
		t.Fatal(err)
	}
	store, done, err := open("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	seeds := &seeder{t, store, dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "order-18"}}
	seeds.finish(dedupstore.Failed, "card refused")
	seeds.key.ID = "order-17"
	seeds.claims(time.Millisecond, "billing-1:417")
	var again dedupstore.Claim
	for again.Fence == 0 { // until that lease has ended
		again = seeds.claims(window, "billing-2:980")
	}
	seeds.ends(again, dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: window, Published: true,
		Took: 12 * time.Millisecond,
	})
	done()
	seen := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ oncemill ")[1:] {
			line, want, _ := strings.Cut(part+"\n", "\n")
			var out bytes.Buffer
			if status := run(t.Context(), words(line), strings.NewReader(""), &out, &out); status != 0 {
				t.Errorf("oncemill %s: status %d", line, status)
			}
			tidy := func(text string) string {
				text = changing.ReplaceAllString(text, "…")
				return strings.TrimSpace(regexp.MustCompile(` +`).ReplaceAllString(text, " ")) // columns grow
			}
			if diff := cmp.Diff(tidy(want), tidy(out.String())); diff != "" {
				t.Errorf("oncemill %s (-page +output):\n%s", line, diff)
			}
			seen++
		}
	}
	if seen < 4 {
		t.Errorf("%d commands were tried, want at least 4", seen)
	}
}

// words splits a command line. Quotes hold words together.
func words(line string) (all []string) {
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(word, `"`))
	}
	return all
}
