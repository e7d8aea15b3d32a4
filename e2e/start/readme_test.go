package start_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The program of the README does as printed in a module with the checkout beside it, and compiles in the checkout.
func TestReadme_ProgramDoesAsPrinted(t *testing.T) {
	t.Parallel()
	page := blocks(t, "README.md")
	for len(page) > 0 && page[0].kind != "go" {
		page = page[1:]
	}
	if len(page) < 4 {
		t.Fatal("want a program, how to run it in the checkout, what it prints, and how to run it elsewhere")
	}
	program, inside, prints, elsewhere := page[0], page[1].text, page[2].text, page[3].text
	if n := strings.Count(program.text, "\n"); n > 40 {
		t.Errorf("the program has %d lines, want 40 at most", n)
	}
	f := newFolder(t, "hello")
	f.paste(program)
	f.shows(elsewhere, f.sh(elsewhere), prints)

	// Nothing is written into the checkout: the go command is told where the file would be.
	pasted, err := filepath.Abs(filepath.Join(root, "examples/hello/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	replace := fmt.Sprintf(`{"Replace": {%q: %q}}`, pasted, filepath.Join(f.dir, program.file))
	if err := os.WriteFile(overlay, []byte(replace), 0o644); err != nil {
		t.Fatal(err)
	}
	checkout := folder{t: t, dir: root, env: []string{"GOFLAGS=-overlay=" + overlay}}
	checkout.sh(strings.Replace(inside, "go run ", "go list -export ", 1)) // compiles it
}
