package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const folder = "../../../docs/pictures"

func TestPictures_AreFresh(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(all())+2 { // e2e/console draws books.svg, and the soak soak.svg
		t.Errorf("docs/pictures has %d files, want %d: delete those that nothing draws", len(files), len(all())+1)
	}
	for _, p := range all() {
		text, err := os.ReadFile(filepath.Join(folder, p.name+".svg"))
		if err != nil || string(text) != p.svg() {
			t.Errorf("docs/pictures/%s.svg is stale (%v): run `go run ./scripts/internal/pictures`", p.name, err)
		}
	}
}

func TestPictures_AreWellFormedAndFit(t *testing.T) {
	t.Parallel()
	for _, p := range all() {
		for d := xml.NewDecoder(strings.NewReader(p.svg())); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
		}
		for _, text := range p.misfits {
			t.Errorf("%s: %q is wider than its room", p.name, text)
		}
		for i, a := range p.boxes {
			for _, b := range p.boxes[:i] {
				if a.x < b.x+b.w && b.x < a.x+a.w && a.y < b.y+b.h && b.y < a.y+a.h {
					t.Errorf("%s: the boxes %v and %v overlap", p.name, a, b)
				}
			}
		}
	}
}
