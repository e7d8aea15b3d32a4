package testserver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestJars_AnUnfinishedDownloadIsNotTakenForJars(t *testing.T) {
	base, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	fake := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func() (string, error) { return fetchJars(base, "shop-1", []string{"org.example:shop:1"}) }
	begin := "for arg; do case $arg in -DoutputDirectory=*) out=${arg#*=};; *pom.xml) pom=$arg;; esac; done\n" +
		"grep -q '<artifactId>shop</artifactId><version>1</version>' $pom || exit 1\n" +
		"mkdir $out && touch $out/one.jar\n"
	fake(begin + "exit 1\n")
	if dir, err := fetch(); err == nil {
		t.Fatalf("a download that broke off gave %s", dir)
	}
	fake(begin + "touch $out/two.jar\n")
	dir, err := fetch()
	if jars, _ := filepath.Glob(filepath.Join(dir, "*.jar")); err != nil || len(jars) != 2 {
		t.Fatalf("the second try gave %q, %v", jars, err)
	}
	fake("exit 1\n")
	if again, err := fetch(); again != dir || err != nil {
		t.Errorf("the third time gave %q, %v", again, err)
	}
}

func TestJars_WithoutMavenAndJarsThatIsSaid(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := fetchJars(t.TempDir(), "shop-1", nil); !errors.Is(err, ErrNoMaven) {
		t.Errorf("error is %v, want %v", err, ErrNoMaven)
	}
}
