package sqlstore_test

import (
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestNameProblem_RefusesWhatNeedsEscaping(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", `x"y`, "1st", "a b", "main.x", "é", "a\n", strings.Repeat("x", 41)} {
		if sqlstore.NameProblem(name, 40) == "" {
			t.Errorf("%q is taken for a good name", name)
		}
	}
	for _, name := range []string{"x", "_", "Outbox_2", strings.Repeat("x", 40)} {
		if problem := sqlstore.NameProblem(name, 40); problem != "" {
			t.Errorf("%q: %s", name, problem)
		}
	}
}
