// Command pictures draws the pictures of the docs: it writes docs/pictures/*.svg. Run it from the root of the repository,
// as `go run ./scripts/internal/pictures`. A test fails while the files differ from what it draws.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	for _, p := range all() {
		if err := os.WriteFile(filepath.Join("docs", "pictures", p.name+".svg"), []byte(p.svg()), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "pictures:", err)
			os.Exit(1)
		}
	}
}

func all() []*picture { return []*picture{states(), delivery(), outbox(), tiers()} }
