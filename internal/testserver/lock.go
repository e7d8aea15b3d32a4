//go:build linux || darwin

package testserver

import (
	"errors"
	"os"
	"syscall"
)

// LockFile waits until no other process has the lock. It ends with the process that has it, however that ends.
func LockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return func() { f.Close() }, nil
}
