package operate

import (
	"strings"
	"testing"
)

func TestReadLog_LinesOfCommandAndConsole(t *testing.T) {
	t.Parallel()
	text := `{"time":"2026-11-29T07:00:00Z","level":"INFO","msg":"changed","who":"root@host","why":"w",` +
		`"action":"rerun","key":"k","fence":7}
{"time":"2026-11-29T07:00:01Z","msg":"sent","who":"root@host","action":"redrive","topic":"dead","ids":["a b","c"]}
{"time":"2026-11-29T07:00:02Z","msg":"console: action","who":"ada","action":"forget","in":"records",` +
		`"what":"k","outcome":"failed: no money","result":"refused","error":"no"}
{"time":"2026-11-29T07:00:03Z","msg":"console: logged in","who":"ada"}
no line at all
{"time":"2026-11-29T07:00:04Z","msg":"refused","who":"root@host","action":"redrive","topic":"dead","id":"d"}`
	var got []string
	others, err := ReadLog(strings.NewReader(text), func(e Entry) {
		got = append(got, strings.Join([]string{
			e.Who, string(e.Action), e.Where, e.What, e.Outcome, e.Result, e.Error,
		}, " "))
	})
	want := []string{
		"root@host rerun  k  changed ", `root@host redrive dead ["a b","c"]  sent `,
		"ada forget records k failed: no money refused no", "root@host redrive dead d  refused ",
	}
	if err != nil || others != 2 || strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q, %d others, %v", got, others, err)
	}
}
