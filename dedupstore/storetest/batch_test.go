package storetest

import (
	"slices"
	"testing"
)

func TestBatchCases_AreEachThereForABrokenRule(t *testing.T) {
	t.Parallel()
	var noticing []string
	for _, name := range brokenBatches {
		noticing = append(noticing, name)
	}
	for _, c := range batchCases {
		if !slices.Contains(noticing, c.name) {
			t.Errorf("no broken store is there for %s", c.name)
		}
	}
}
