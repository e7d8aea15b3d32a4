//go:build !linux

package testserver

import "os/exec"

// dieWithParent does nothing: only Linux offers it. Cleanup still stops the process.
func dieWithParent(*exec.Cmd) {}
