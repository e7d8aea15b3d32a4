package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWatch_SaysWhatAProcessUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "used")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := watch(file, []string{"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"}); err != nil {
		t.Fatal(err)
	}
	if err := watch(file, []string{"false"}); err == nil {
		t.Error("a process that fails is no error")
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := json.NewDecoder(f)
	var first, second used
	if err := lines.Decode(&first); err != nil {
		t.Fatal(err)
	}
	if first.Processor <= 0 || first.Took <= 0 || first.Dir == "" {
		t.Errorf("it used %+v", first)
	}
	if err := lines.Decode(&second); err != nil {
		t.Errorf("a process that failed left nothing: %v", err)
	}
}

func TestWrite_HasThePackageThatWorksMostFirst(t *testing.T) {
	tests := map[string][]event{}
	events := `{"Action":"pass","Package":"` + module + `/a","Test":"TestQuick","Elapsed":1}
{"Action":"pass","Package":"` + module + `/a","Test":"TestSlow","Elapsed":7}
{"Action":"pass","Package":"` + module + `/a","Test":"TestSlow/part","Elapsed":6}
{"Action":"pass","Package":"` + module + `","Test":"TestRoot","Elapsed":2}
{"Action":"pass","Package":"` + module + `/a","Elapsed":8}`
	if err := read(strings.NewReader(events), tests); err != nil {
		t.Fatal(err)
	}
	var all, out strings.Builder
	for _, u := range []used{{"/r", 3 * time.Second, time.Second}, {"/r/a", 9 * time.Second, 5 * time.Second}} {
		if err := json.NewEncoder(&all).Encode(u); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(&out, "/r", strings.NewReader(all.String()), tests); err != nil {
		t.Fatal(err)
	}
	want := []string{"12s", "6s all", "/r/a", "TestSlow", "TestQuick", "/r", "TestRoot"}
	rest := out.String()
	for _, word := range want {
		_, after, found := strings.Cut(rest, word)
		if !found {
			t.Fatalf("after what came before, %q is missing in\n%s", word, &out)
		}
		rest = after
	}
	if strings.Contains(out.String(), "part") {
		t.Errorf("parts of tests are listed:\n%s", &out)
	}
}
