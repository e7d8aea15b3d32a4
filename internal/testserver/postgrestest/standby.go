package postgrestest

import (
	"os/exec"
	"testing"
)

// Standby returns a new server that replicates this one, asynchronously, until it is promoted: it has all databases, and no
// replication slot.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	s.Process()
	standby := &Server{t: t, files: postgresFiles{programs: s.files.programs, config: s.files.config}}
	if err := standby.files.makeDir("oncemill-standby-"); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { standby.files.remove(t) })
	command := standby.files.command("pg_basebackup", "-d", s.dsn, "-D", standby.files.data(), "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = standby.files.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("testserver: pg_basebackup: %v\n%s", err, out)
	}
	standby.start()
	return standby
}
