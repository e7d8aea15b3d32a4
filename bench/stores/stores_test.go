package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// The test's own program is the NATS server that it starts.
func TestMain(m *testing.M) {
	kit.ServeIfAsked()
	os.Exit(m.Run())
}

// A node of Cassandra takes half a minute to start, and so has its turn with ONCEMILL_PROOF=1.
var proof = os.Getenv("ONCEMILL_PROOF") != ""

func TestProgram_QuickRunComparesFullStoresWithEmptyOnes(t *testing.T) {
	stores := []string{"redis", "natskv", "postgres", "mysql", "sqlite", "dynamodb"}
	if proof {
		stores = append(stores, "cassandra")
	}
	kit.QuickRecords(t, records, stores...)
}

func TestProgram_QuickRunMeasuresEachStoreThatCanBeHad(t *testing.T) {
	chosen := slices.Clone(experiments)
	if !proof {
		chosen = slices.DeleteFunc(chosen, func(e kit.Experiment) bool { return e.Name == "cassandra" })
	}
	var stdout, stderr bytes.Buffer
	if err := kit.Run(t.Context(), []string{"-quick"}, &stdout, &stderr, chosen...); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for _, e := range chosen {
		want := "\nratio " + e.Variants[0] + "_vs_hand "
		if e.Name == "memory" {
			want = "| Memory |"
		}
		measured := strings.Contains(stdout.String(), want)
		if leftOut := strings.Contains(stderr.String(), e.Name+" is left out: "); measured == leftOut {
			t.Errorf("%s: measured %t, left out %t", e.Name, measured, leftOut)
		} else if leftOut && os.Getenv("CI") == "true" {
			t.Errorf("%s is left out", e.Name)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", stdout.String(), stderr.String())
	}
}
