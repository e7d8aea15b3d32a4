package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const code = `package p

import "time"

func Most(a, b int, ok bool) (most int, err error) {
	if a < b && ok {
		return max(a, 3), nil
	}
	most += a * 2
	return most, nil
}

func Late(now, end time.Time) bool { return !now.Before(end) }

func Unused() { println() }
`

const codeTest = `package p

import (
	"testing"
	"time"
)

func TestMost(t *testing.T) {
	for _, c := range []struct{ a, b int; ok bool; want int }{
		{1, 2, true, 3}, {5, 6, true, 5}, {1, 2, false, 2}, {2, 2, true, 4}, {3, 1, true, 6},
	} {
		if got, err := Most(c.a, c.b, c.ok); got != c.want || err != nil {
			t.Errorf("Most(%d, %d, %v) is %d", c.a, c.b, c.ok, got)
		}
	}
}

func TestLate(t *testing.T) {
	now := time.Now()
	if Late(now, now.Add(1)) || !Late(now, now.Add(-1)) {
		t.Error("wrong")
	}
}

func TestCrash(t *testing.T) { panic("a test that fails anyway is left out") }
`

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// One run over a small module: each kind of mutant compiles and is told from the others, and the table counts it.
func TestTry(t *testing.T) {
	root := t.TempDir()
	t.Setenv("GOWORK", "off")
	write(t, root, map[string]string{"go.mod": "module p\n\ngo 1.26\n", "p.go": code, "p_test.go": codeTest})
	*folder = "work"
	late := "p.go: func Late(now, end time.Time) bool { return !now.Before(end) }\n\t"
	known := map[string]string{
		late + "shift `now.Before(end)`":  "For the sake of this test.",
		late + "negate `now.Before(end)`": "This one is killed.",
		"p.go: gone\n\tnegate `x`":        "This one is gone.",
	}
	p := target{name: "p", dir: ".", suites: []suite{{dir: "."}}}
	for range 2 { // the second run reads what the first has found
		s, wrong, err := p.try(root, known, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if want := (score{name: "p", killed: 10, equal: 1, uncovered: 1}); s != want {
			t.Errorf("the score is %+v, want %+v", s, want)
		}
		text := strings.Join(wrong, "\n")
		for _, part := range []string{
			"no such mutant any more: p.go: gone", "println()", "not covered",
			"is in equal.txt, and killed by --- FAIL: TestLate",
		} {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
}

func TestMutateGo(t *testing.T) {
	root := t.TempDir()
	t.Setenv("GOWORK", "off")
	write(t, root, map[string]string{"go.mod": "module p\n\ngo 1.26\n", "p.go": code})
	mutants, changed, err := mutateGo(root, ".", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.what)
	}
	want := []string{
		"swap && and || in `a < b && ok`", "negate `a < b`", "shift `a < b`", "negate `ok`", "return zero for `max(a, 3)`",
		"swap min and max in `max(a, 3)`", "remove `most += a * 2`", "invert * in `a * 2`", "return zero for `most`",
		"negate `now.Before(end)`", "shift `now.Before(end)`", "remove `println()`",
	}
	for _, what := range want {
		if n := strings.Count(strings.Join(got, "\n")+"\n", what+"\n"); n != 1 {
			t.Errorf("%d times %s among\n%s", n, what, strings.Join(got, "\n"))
		}
	}
	if text := changed[filepath.Join(root, "p.go")]; strings.Count(text, "\n") != strings.Count(code, "\n") {
		t.Errorf("the lines have moved:\n%s", text)
	}
}

func TestMutateStatements(t *testing.T) {
	for name, tc := range map[string]struct {
		in         *language
		file, text string
		want       []string
	}{
		"Lua": {lua, "s.lua", `-- if a < b then
if a == 'x < y' then
  return 1
elseif b <= 2 and
  c ~= 3 then
  return 2
elseif d or e then
  return 3
end
`, []string{
			"negate `a == 'x < y'`", "negate `b <= 2 and c ~= 3`", "negate `d or e`", "<= is < before `2 and`",
			"and is or before ``", "~= is == before `3 then`", "or is and before `e then`",
		}},
		"SQL": {postgres, "s.sql", `-- WHERE µ < b
UPDATE t SET a = CASE WHEN b > 1 THEN 'x < y' END, c = 2
WHERE (d = 1 OR e BETWEEN 1 AND 2) AND NOT EXISTS (SELECT FROM u WHERE u.f IS NULL)
RETURNING g
`, []string{
			"negate `b > 1`", "negate `(d = 1 OR e BETWEEN 1 AND 2) AND NOT EXISTS (SELECT FROM u WHERE u.f IS NULL)`",
			"negate `u.f IS NULL`", "> is >= before `1 THEN 'x < y' END, c = 2`",
			"= is <> before `1 OR e BETWEEN 1 AND 2) AND NOT EXISTS`", "OR is AND before `e BETWEEN 1 AND 2) AND NOT EXISTS (SELE`",
			"BETWEEN 1 AND is NOT BETWEEN 1 AND before `2) AND NOT EXISTS (SELECT FROM u WHERE`",
			"AND is OR before `NOT EXISTS (SELECT FROM u WHERE u.f IS`", "NOT is  before `EXISTS (SELECT FROM u WHERE u.f IS NULL`",
		}},
		"constants of Go": {postgres, "s.go", "package p\n\nvar few = 1 < 2\n\nconst q = `SELECT a FROM t WHERE b = 1`\n",
			[]string{"negate `b = 1`"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			files := map[string]string{tc.file: tc.text}
			for _, r := range tc.in.reads {
				files[r.file] += r.code
			}
			write(t, root, files)
			mutants, changed, err := tc.in.mutate(root, ".", []string{tc.file})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range mutants {
				got = append(got, m.what)
				from, _ := strings.CutPrefix(m.env[0], "ONCEMILL_MUTANT_OLD=")
				if n := strings.Count(tc.text, from); n != 1 {
					t.Errorf("%s: %q is there %d times", m.what, from, n)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			for _, r := range tc.in.reads {
				if text := changed[filepath.Join(root, r.file)]; !strings.Contains(text, r.instead) {
					t.Errorf("%s has no %q: %s", r.file, r.instead, text)
				}
			}
		})
	}
}

func TestReadEqual(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "equal.txt")
	write(t, filepath.Dir(path), map[string]string{"equal.txt": "a.go: x\n\tnegate `x`\n"})
	if _, err := readEqual(path); err == nil {
		t.Error("an entry without a reason was read")
	}
	if _, err := readEqual("equal.txt"); err != nil {
		t.Error(err)
	}
}
