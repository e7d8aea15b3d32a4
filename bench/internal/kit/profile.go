package kit

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
)

// allocationRate is how many bytes are allocated between samples of a profile: few, because what is measured is short.
const allocationRate = 8 << 10

// Profiled does a piece of work, with the profiles that the options ask for.
func (b *Bench) Profiled(work func() error) (err error) {
	if b.CPUProfile != "" {
		f, err := os.Create(b.CPUProfile)
		if err != nil {
			return err
		}
		defer f.Close() // a file that is cut short cannot be read, which says enough
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if b.MemProfile != "" {
		runtime.MemProfileRate = allocationRate
		defer func() {
			err = errors.Join(err, writeAllocations(b.MemProfile)) // it scales by the rate
			runtime.MemProfileRate = 0
		}()
	}
	return work()
}

func writeAllocations(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
