package kit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc on Linux, whatever the kernel's own clock is.
const clockTick = time.Second / 100

// ServersCPU is what all processes have used that this one has started. Without /proc it is 0.
func ServersCPU() (time.Duration, error) {
	own, err := statOf(os.Getpid())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	used, err2 := childrenCPU(os.Getpid())
	return own.waited + used, errors.Join(err, err2)
}

// treeCPU is what a process, its children and those that it has waited for have used. Without /proc it is 0.
func treeCPU(pid int) (time.Duration, error) {
	all, err := statOf(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	used, err := childrenCPU(pid)
	return all.own + all.waited + used, err
}

func childrenCPU(pid int) (used time.Duration, err error) {
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range children {
		list, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		for child := range strings.FieldsSeq(string(list)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return 0, err
			}
			if c, err := treeCPU(n); err == nil { // else it has ended, and the parent knows what it used
				used += c
			}
		}
	}
	return used, nil
}

type stat struct{ own, waited time.Duration }

// statOf reads utime, stime, cutime and cstime, the fields 14 to 17 of /proc/PID/stat (proc(5)).
func statOf(pid int) (s stat, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name of the program, which is field 2
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return s, fmt.Errorf("kit: /proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	for i, d := range []*time.Duration{&s.own, &s.own, &s.waited, &s.waited} {
		n, err := strconv.ParseInt(fields[11+i], 10, 64)
		if err != nil {
			return s, err
		}
		*d += time.Duration(n) * clockTick
	}
	return s, nil
}
