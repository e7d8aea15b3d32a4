package faults_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A killed process or a failed handler explains a second effect, if the store granted it as its rules say.
func TestAudit_ExplainsNoEffectWithoutAReason(t *testing.T) {
	t.Parallel()
	start := time.Now()
	killed := map[int]time.Time{1: start}
	first := func(pid int, how end, failed bool) entry {
		return entry{PID: pid, Attempt: 1, Found: dedupstore.Absent, Until: start.Add(time.Second), End: how, Failed: failed}
	}
	second := func(found dedupstore.State, after time.Duration) entry {
		return entry{PID: 3, Attempt: 2, Found: found, Granted: start.Add(after)}
	}
	for name, tc := range map[string]struct {
		first, second entry
		want          string
	}{
		"killed":                           {first(1, "", false), second(dedupstore.Running, time.Minute), holderKilled},
		"killed, taken over too early":     {first(1, "", false), second(dedupstore.Running, 0), ""},
		"killed after its outcome":         {first(1, recorded, false), second(dedupstore.Running, time.Minute), lostRecord},
		"another process was killed":       {first(2, "", false), second(dedupstore.Running, time.Minute), lostLease},
		"failed":                           {first(2, released, true), second(dedupstore.Retryable, 0), handlerFailed},
		"failed, and the record is gone":   {first(2, released, true), second(dedupstore.Absent, 0), lostRecord},
		"released although it succeeded":   {first(2, released, false), second(dedupstore.Retryable, 0), ""},
		"a handler that runs without one":  {first(2, released, true), second("", time.Minute), ""},
		"refused, as another one had come": {first(1, refused, false), second(dedupstore.Running, time.Minute), lostLease},
	} {
		if got := reason(tc.first, tc.second, killed); got != tc.want {
			t.Errorf("%s: explained by %q, want %q", name, got, tc.want)
		}
	}
}

func TestAudit_CountsWhatIsLost(t *testing.T) {
	t.Parallel()
	a := newAudit(t)
	text := `{"ID":"done","Fence":1,"Attempt":1,"Found":"absent"}
{"ID":"done","Fence":1,"Attempt":1,"Found":"absent","Effect":"2026-01-01T00:00:00Z","End":"recorded"}
{"ID":"no effect","Fence":1,"Attempt":1,"Found":"absent","End":"recorded"}
{"ID":"no outcome","Fence":1,"Attempt":1,"Found":"absent","Effect":"2026-01-01T00:00:00Z"}
{"ID":"cut off","Fence":1,"Attem`
	if err := os.WriteFile(filepath.Join(a.dir, "1.journal"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := []string{"done", "no effect", "no outcome", "cut off", "buried", "never seen"}
	b := a.balance(ids, 0, map[string]int{"buried": 1}, nil, func(id string) bool { return id != "no outcome" })
	if want := []string{"no effect", "no outcome", "cut off", "never seen"}; !slices.Equal(b.lost, want) || b.effects != 2 || b.deadLetters != 1 {
		t.Errorf("%v, lost %q, want %q", b, b.lost, want)
	}
}
