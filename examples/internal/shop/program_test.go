package shop

import (
	"context"
	"flag"
	"io"
	"os"
	"syscall"
	"testing"
)

func TestMain_SignalBeginsTheDrain(t *testing.T) {
	for name, want := range map[bool]int{true: 0, false: 1} {
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		status := Main(t.Context(), flags, nil, io.Discard, func(ctx context.Context, _ string) (bool, error) {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return false, err
			}
			<-ctx.Done()
			return name, nil
		})
		if status != want {
			t.Errorf("status %d, want %d", status, want)
		}
	}
}
