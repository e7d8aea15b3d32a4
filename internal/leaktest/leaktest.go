// Package leaktest fails the tests of a package that leave goroutines behind.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main runs the tests of a package, and ends the process. It fails if goroutines are left some seconds after them:
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := leftAfter(time.Minute); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: goroutines are left after the tests:\n\n%s\n", strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// leftAfter returns the goroutines that do not end within a time: their stacks.
func leftAfter(limit time.Duration) (left []string) {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if left = others(); len(left) == 0 || time.Since(start) > limit {
			return left
		}
	}
}

// others returns the stacks of all goroutines but this one, those that the runtime keeps, and those that wait for a
// test.
func others() (stacks []string) {
	buf := make([]byte, 4<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	for _, stack := range all[1:] { // the first one is this
		if !strings.Contains(stack, "os/signal.") && !strings.Contains(stack, "testing.(*T).Run(") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
