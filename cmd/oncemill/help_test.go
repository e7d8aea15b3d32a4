package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestHelp_Fits80Columns(t *testing.T) {
	t.Parallel()
	seen := 0
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		var out bytes.Buffer
		args := strings.Fields(cmd.CommandPath() + " --help")[1:]
		if status := run(t.Context(), args, nil, &out, &out); status != 0 {
			t.Errorf("%q: status %d", args, status)
		}
		for line := range strings.Lines(out.String()) {
			if line = strings.TrimSuffix(line, "\n"); len([]rune(line)) > 80 {
				t.Errorf("%q has a line of %d columns: %s", args, len([]rune(line)), line)
			}
		}
		seen++
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(new(app).command())
	if seen < 20 {
		t.Errorf("%d commands have a help, want at least 20", seen)
	}
}
