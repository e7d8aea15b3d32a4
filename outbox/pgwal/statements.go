package pgwal

import "strings"

// statements are the SQL of one relay.
type statements struct {
	known, rest, unseen, mark string
	settle                    string
}

func statementsFor(cfg Config) statements {
	in := strings.NewReplacer("{table}", cfg.located(""), "{lease}", cfg.located("_lease")).Replace
	return statements{
		known: in(knownSQL), rest: in(restSQL), unseen: in(unseenSQL), mark: in(markSQL),
		settle: in(settleSQL),
	}
}

// located is the quoted name of one of pgoutbox's tables. It needs no escaping: pgoutbox has checked it.
func (c Config) located(ending string) string {
	quoted := `"` + c.Table + ending + `"`
	if c.Schema == "" {
		return quoted
	}
	return `"` + c.Schema + `".` + quoted
}
