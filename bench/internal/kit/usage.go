package kit

import (
	"runtime"
	"syscall"
	"time"
)

// A Usage is what this process has used so far.
type Usage struct {
	CPU     time.Duration // user and system
	Mallocs uint64        // objects allocated on the heap
}

// Used returns the usage up to now.
func Used() (Usage, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Usage{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), Mallocs: m.Mallocs}, nil
}
