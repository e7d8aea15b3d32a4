package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shell runs bash after scripts/lib.sh, with a policy for services in a folder of the test, and returns what it says.
func shell(t *testing.T, script string, env ...string) (said string, status int) {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy")
	cmd := exec.Command("bash", "-c", ". scripts/lib.sh\npolicy="+policy+"\n"+script)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the policy is left after\n%s\n%s", script, out)
	}
	return string(out), status
}

func TestScripts_ServicesAreForbiddenWhileOneInstallsAndNotAfterwards(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{
		`without_services sh -c "$policy; exit \$?"`:         101,
		`without_services exit 7`:                            7,
		`without_services no-such-program`:                   127,
		`without_services eval 'kill -TERM $BASHPID'`:        143,
		`without_services eval 'kill -INT $BASHPID'`:         130,
		`touch $policy; without_services true && rm $policy`: 0, // the machine's own is left alone
	} {
		if said, status := shell(t, script); status != want {
			t.Errorf("%s: status %d, want %d\n%s", script, status, want, said)
		}
	}
}

// need_prometheus on a machine that may install and lacks the programs, one after the other.
func TestScripts_PrometheusIsInstalledWithoutItsServiceOnly(t *testing.T) {
	t.Parallel()
	const machine = `
can_install() { true; }
systemctl() { false; }
apt_install() { echo "installs $*, services $([ -e "$policy" ] && echo forbidden || echo ALLOWED)"; }
command() { case $2 in prometheus | promtool) [[ " $have " = *" $2 "* ]] ;; *) false ;; esac; }
need_prometheus
echo "status $?, ${#missing[@]} missing"`
	for have, want := range map[string]string{
		"":                    "installs prometheus, services forbidden\nstatus 1, 1 missing\n",
		"prometheus":          "installs prometheus, services forbidden\nstatus 1, 1 missing\n",
		"promtool":            "installs prometheus, services forbidden\nstatus 1, 1 missing\n",
		"prometheus promtool": "status 0, 0 missing\n",
	} {
		if said, _ := shell(t, "have='"+have+"'"+machine); said != want {
			t.Errorf("with %q: %s, want %s", have, said, want)
		}
	}
}

func TestScripts_WhatIsMissingIsSaidAndFailsWithCI(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]int{"CI=": 0, "CI=true": 1} {
		said, status := shell(t, `missing+=("prometheus: not tried"); finish`, env)
		if status != want || !strings.Contains(said, "prometheus: not tried") || strings.Contains(said, "all green") {
			t.Errorf("%s: status %d, want %d\n%s", env, status, want, said)
		}
	}
}

// A scratch is a repository with the scripts of this one, and little else.
type scratch struct {
	t   *testing.T
	dir string
}

func newScratch(t *testing.T) *scratch {
	t.Helper()
	s := &scratch{t: t, dir: t.TempDir()}
	if err := os.CopyFS(filepath.Join(s.dir, "scripts"), os.DirFS(filepath.Join(root, "scripts"))); err != nil {
		t.Fatal(err)
	}
	s.git("init", "-q", "-b", "main")
	s.git("config", "user.name", "test")
	s.git("config", "user.email", "test@example.com")
	return s
}

// run runs a program in the scratch, and returns what it says.
func (s *scratch) run(program string, args ...string) (said string, status int) {
	s.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "CI=", "GOWORK=")
	out, err := cmd.CombinedOutput()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out), 0
}

func (s *scratch) git(args ...string) string {
	s.t.Helper()
	said, status := s.run("git", args...)
	if status != 0 {
		s.t.Fatalf("git %s: %s", strings.Join(args, " "), said)
	}
	return said
}

// commit writes the files, and commits all there is.
func (s *scratch) commit(subject string, files map[string]string) {
	s.t.Helper()
	for name, text := range files {
		name = filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.git("add", "-A")
	s.git("commit", "-q", "--allow-empty", "-m", subject)
}

func TestScripts_SubjectsFindsEachFault(t *testing.T) {
	t.Parallel()
	s := newScratch(t)
	if said, status := s.run("scripts/subjects"); status != 0 || !strings.Contains(said, "nothing to check") {
		t.Errorf("without a commit: status %d: %s", status, said)
	}
	s.commit("the start is not looked at.", nil)
	s.git("tag", "v0.1.0")
	for _, subject := range []string{
		"Keep the fence when a lease expires", "pgstore: keep the fence", "docs/brokers.md, franz: name the lock", "X" + strings.Repeat("ü", 71),
	} {
		s.commit(subject, nil)
	}
	if said, status := s.run("scripts/subjects"); status != 0 || !strings.Contains(said, "4 commit subjects checked, 0 ") {
		t.Errorf("status %d: %s", status, said)
	}
	for subject, want := range map[string]string{
		"keep the fence":              "upper-case",
		"fixup! Keep the fence":       "upper-case",
		"pgstore:keep the fence":      "upper-case",
		"Keep the fence.":             "period",
		"X" + strings.Repeat("ü", 72): "not 73",
	} {
		s.commit(subject, nil)
		if said, status := s.run("scripts/subjects", "HEAD~1"); status != 1 || !strings.Contains(said, want) {
			t.Errorf("%q: status %d, want %q: %s", subject, status, want, said)
		}
	}
	if said, status := s.run("scripts/subjects", "v0.0.9"); status != 2 {
		t.Errorf("with a base that is not there: status %d: %s", status, said)
	}

	shallow := &scratch{t: t, dir: t.TempDir()}
	s.git("clone", "-q", "--depth", "1", "--no-tags", "file://"+s.dir, shallow.dir)
	shallow.git("update-ref", "-d", "refs/remotes/origin/main")
	if said, status := shallow.run("scripts/subjects"); status != 1 || !strings.Contains(said, "shallow") || !strings.Contains(said, "1 commit subjects checked") {
		t.Errorf("a shallow clone: status %d: %s", status, said)
	}
}

func TestScripts_ReleaseBuildsEachModuleFromItsTagAndTheLastOnesWithTheNewRoot(t *testing.T) {
	t.Parallel()
	const module = "github.com/oncemill/oncemill"
	s := newScratch(t)
	s.commit("Begin", map[string]string{
		"go.mod":          "module " + module + "\n\ngo 1.26.0\n",
		"doc.go":          "package oncemill\n",
		"internal/n/n.go": "package n\n\nconst N = 1\n",
		"store/go.mod":    "module " + module + "/store\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => ..\n",
		"store/store.go":  "package store\n\nimport \"" + module + "/internal/n\"\n\nvar N = n.N\n",
		"examples/go.mod": "module " + module + "/examples\n\ngo 1.26.0\n\n" +
			"require (\n\t" + module + " v0.0.0 // indirect\n\t" +
			module + "/store v0.0.0\n)\n\nreplace (\n\t" + module + " => ..\n\t" + module + "/store => ../store\n)\n",
		"examples/e.go": "package examples\n\nimport \"" + module + "/store\"\n\nvar N = store.N\n",
		"go.work":       "go 1.26.0\n\nuse (\n\t.\n\t./examples\n\t./store\n)\n",
		"CHANGELOG.md":  "# Changelog\n\n## [0.1.0]\n\nThe first.\n\n## [0.0.1]\n\nAn older one.\n",
	})
	if said, status := s.run("scripts/apidiff"); status != 0 || !strings.Contains(said, "no release yet") {
		t.Errorf("apidiff before the first release: status %d: %s", status, said)
	}
	said, status := s.run("scripts/release", "-notes", "v0.1.0")
	if status != 0 || strings.TrimSpace(said) != "The first." {
		t.Errorf("notes: status %d: %s", status, said)
	}
	before := s.git("show-ref")
	if said, status := s.run("scripts/release", "v0.1.0"); status != 0 || s.git("show-ref") != before {
		t.Fatalf("the dry run: status %d: %s\nthen %s", status, said, s.git("show-ref"))
	}
	if said, status := s.run("scripts/release", "v0.1.0", "-go"); status != 0 {
		t.Fatalf("status %d: %s", status, said)
	}
	if tags := s.git("tag"); tags != "store/v0.1.0\nv0.1.0\n" {
		t.Errorf("tags: %s", tags)
	}
	tagged, after := s.git("show", "store/v0.1.0:store/go.mod"), s.git("show", "HEAD:store/go.mod")
	if !strings.Contains(tagged, module+" v0.1.0") || strings.Contains(tagged, "replace") || !strings.Contains(after, "replace "+module+" => ..") {
		t.Errorf("at the tag:\n%s\nafter it:\n%s", tagged, after)
	}
	tagged, after = s.git("show", "v0.1.0:go.work"), s.git("show", "HEAD:go.work")
	if !strings.Contains(tagged, module+" v0.1.0 => .") || strings.Contains(after, "replace") {
		t.Errorf("the workspace at the tag:\n%s\nafter it:\n%s", tagged, after)
	}

	s.commit("Rename what another module imports", map[string]string{
		"internal/n/n.go": "package n\n\nconst M = 1\n",
		"store/store.go":  "package store\n\nimport \"" + module + "/internal/n\"\n\nvar N = n.M\n",
	})
	said, status = s.run("scripts/release", "v0.2.0")
	_, failures, _ := strings.Cut(said, "FAILED")
	if status != 1 || !strings.Contains(failures, "store/v0.1.0 builds with the new root") || strings.Contains(failures, "v0.2.0") {
		t.Errorf("a broken internal API: status %d: %s", status, said)
	}
}
