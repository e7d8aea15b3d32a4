package redisstore

import (
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// FuzzDecode reads any reply of the claim script: nothing panics, and what is granted can be settled.
func FuzzDecode(f *testing.F) {
	const sep = "\x1f"
	good := []string{"acquired_publish", "publishing", "1799999999999999", "2", "1799999999999998", "5", "17", "trace",
		"failed", "1", "why", "result", "1", `[{"id":"a","topic":"t","key":{"base64":"/w=="}}]`, `[{"header":[["k","v"]],"payload":"eA=="}]`}
	f.Add(strings.Join(good, sep))
	for _, status := range []string{"acquired_run", "busy", "done", "mismatch", "unreadable", ""} {
		good[atStatus] = status
		f.Add(strings.Join(good, sep))
	}
	good[atStatus], good[atContent] = "acquired_publish", "[]"
	f.Add(strings.Join(good, sep))
	f.Add("full")
	f.Fuzz(func(t *testing.T, raw string) {
		values := []any{}
		for part := range strings.SplitSeq(raw, sep) {
			values = append(values, part)
		}
		reply, err := texts(values)
		if err != nil {
			t.Fatal(err)
		}
		r := request("fuzz")
		a, err := decodeAnswer(reply, r)
		if err != nil {
			if a.Status != "" {
				t.Errorf("an error came with an answer: %+v", a)
			}
			return
		}
		switch a.Status {
		case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
			if err := a.Claim.Validate(); err != nil {
				t.Errorf("the claim cannot be settled: %v", err)
			}
		default:
			if a.Claim != (dedupstore.Claim{}) {
				t.Errorf("%s came with a claim", a.Status)
			}
		}
		if a.Wait < 0 || a.Age < 0 {
			t.Errorf("wait %v, age %v", a.Wait, a.Age)
		}
		fields, err := encodeOutcome(a.Outcome, true)
		if err != nil || len(fields)%2 != 0 {
			t.Errorf("the outcome cannot be written again: %v", err)
		}
	})
}

func TestTexts_RefuseWhatIsNoArrayOfStrings(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{nil, "ok", int64(1), []any{}, []any{nil}, []any{int64(1)}, []any{"ok", []any{"ok"}}, map[any]any{"ok": 1}} {
		if got, err := texts(reply); err == nil {
			t.Errorf("%v was read as %q", reply, got)
		}
	}
}
