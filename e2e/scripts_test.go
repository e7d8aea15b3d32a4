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
