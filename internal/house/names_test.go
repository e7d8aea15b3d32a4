package house

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// telemetryName is the name of a metric or an attribute.
var telemetryName = regexp.MustCompile(`^(oncemill|messaging|error)\.[a-z_]+(\.[a-z_]+)*$`)

// Names of telemetry are a contract with dashboards and alerts: they stand in one place. Programs are users of it.
func TestSource_NamesOfTelemetryStandInItsPackage(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		if r, _ := house.row(p.path()); r.floor == programs || p.path() == "internal/telemetry" {
			continue
		}
		var files []string
		for _, name := range p.GoFiles {
			files = append(files, filepath.Join(p.Dir, name))
		}
		eachFinding(t, files, telemetryNames, "a name of telemetry: it belongs to internal/telemetry")
	}
}

// telemetryNames finds literals that are names of telemetry.
func telemetryNames(f *ast.File) (found []token.Pos) {
	for n := range ast.Preorder(f) {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && telemetryName.MatchString(text) {
			found = append(found, literal.Pos())
		}
	}
	return found
}

func TestTelemetryNames_FindsThem(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]int{
		`var name = "oncemill.claims"`:                                           1,
		"var name = `messaging.destination.name`":                                1,
		`func f() { g("error.type", "oncemill.duplicate.cause") }`:               2,
		`var name = "oncemill-id"`:                                               0,
		`var text = "oncemill: claim lost"`:                                      0,
		`import _ "github.com/oncemill/oncemill"; var file = "oncemill.go file"`: 0,
	} {
		if found := telemetryNames(parse(t, token.NewFileSet(), "p.go", "package p\n"+src)); len(found) != want {
			t.Errorf("%s: found %d, want %d", src, len(found), want)
		}
	}
}
