package faults_test

import (
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
)

// names finds the records that commands in an append-only file write.
var names = regexp.MustCompile(`oncemill:default:billing:charge:order-\d{6}`)

// cut takes bytes from the end of the server's append-only file, while it is down, and starts it again. It returns how
// many records the server lost something of: it starts silently, with what it could read.
func (d durable) cut(t *testing.T, bytes int) int {
	t.Helper()
	if err := d.Process().Stop(); err != nil {
		t.Fatal(err)
	}
	name := d.log(t)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, int64(max(0, len(whole)-bytes))); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	kept, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	records := map[string]bool{}
	for _, name := range names.FindAllString(string(whole[kept.Size():]), -1) {
		records[name] = true
	}
	return len(records)
}

// Full: 20 cuts, of up to 20,000 bytes. After each, the broker delivers everything once more.
func TestRedis_CutTailOfTheAppendOnlyFileRepeatsNoMoreThanWhatWasInIt(t *testing.T) {
	t.Parallel()
	server := newDurable(t, "always")
	r := newRig(t, client(t, server.Addr), setup{lease: 3 * time.Second})
	lost := 0
	for range full(20, 1) {
		r.publish(200)
		r.drain()
		cut := ledger.Event{Why: ledger.LostRecord, From: time.Now()}
		lost += server.cut(t, full(rand.N(20_000), 5003))
		cut.To = time.Now()
		r.Happened(cut)
		r.redeliver()
		r.drain()
	}
	b := r.finish()
	b.MustExplain(t, ledger.LostRecord)
	t.Logf("%d records were cut", lost)
	if n := b.Extras(); n == 0 || n > lost {
		t.Errorf("%d extra effects, want 1 to %d", n, lost)
	}
}
