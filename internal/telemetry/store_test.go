package telemetry

import (
	"path"
	"path/filepath"
	"testing"
)

// Dashboards tell every store apart.
func TestStoreName_IsKnownOfEveryStore(t *testing.T) {
	t.Parallel()
	modules, err := filepath.Glob(filepath.Join("..", "..", "dedupstore", "*", "go.mod"))
	if err != nil || len(modules) == 0 {
		t.Fatalf("%d stores, %v", len(modules), err)
	}
	for _, module := range modules {
		name := filepath.Base(filepath.Dir(module))
		if storeNames[path.Join(Scope, "dedupstore", name)] == "" {
			t.Errorf("%s has no name", name)
		}
	}
}
