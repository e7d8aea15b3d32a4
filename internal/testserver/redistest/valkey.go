package redistest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// valkeyProgram names the environment variable with the valkey-server to start, by its path.
const valkeyProgram = "ONCEMILL_TEST_VALKEY"

// StartValkey returns a new Valkey server for the test, as [Start] does: started from the program that the environment
// variable ONCEMILL_TEST_VALKEY names, or from the valkey-server in PATH. Not every distribution has it: without it the
// test is skipped, also with CI=true, and recorded as skipped. A program that is named and cannot be started fails the
// test.
func StartValkey(t testing.TB, args ...string) *Server {
	t.Helper()
	testserver.Wanted(t)
	program, err := exec.LookPath(cmp.Or(os.Getenv(valkeyProgram), "valkey-server"))
	switch {
	case err != nil && os.Getenv(valkeyProgram) != "":
		t.Fatalf("testserver: %s: %v", valkeyProgram, err)
	case err != nil:
		testserver.Optional(t, "valkey-server is not in PATH, and %s does not name one (Debian 12: in backports)", valkeyProgram)
	}
	s := &Server{t: t, program: program, args: args, dir: t.TempDir()}
	s.startOnFreePort(testserver.FreePort)
	testserver.Record(t, fmt.Sprintf("valkey-server %s (started, single)", testserver.ProgramVersion(t, program)))
	return s
}
