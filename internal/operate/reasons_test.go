package operate

import (
	"strings"
	"testing"
)

func TestPattern_ReasonsThatDifferInWhatVaries(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string][2]string{
		"":                                             {NoReason, ""},
		"card refused":                                 {"card refused", "card refused"},
		"card 4711 refused":                            {"card # refused", " refused"},
		"dial tcp 10.0.0.7:5432: refused":              {"dial tcp #.#.#.#:#: refused", "dial tcp "},
		"order 7f3a-9c is bad":                         {"order #-# is bad", " is bad"},
		"order 0af7651916cd43dd8448eb211c80319c":       {"order #", "order "},
		"order 01hzx3ke6v9j8r2mq4w5t7ynbg: gone":       {"order #: gone", "order "},
		"pointer 0xc0000b2000 is nil":                  {"pointer # is nil", "pointer "},
		"id b7ad6b71-6920-4331-8448-eb211c80319c!":     {"id #!", "id "},
		"id b7adcbfa-aced-bead-cafe-ebfaccdebabe!":     {"id #!", "id "},
		"card service: POST /v1/charges/f00dcafe: 503": {"card service: POST /v#/charges/#: #", "card service: POST /v"},
		`topic "orders.eu" has no stream`:              {`topic "#" has no stream`, `" has no stream`},
		"no column 'cents' in `orders`":                {"no column '#' in `#`", "no column '"},
		"it can't be: the customer's card isn't there": {"it can't be: the customer's card isn't there",
			"it can't be: the customer's card isn't there"},
		`an open " quote`:    {`an open " quote`, `an open " quote`},
		"42":                 {"#", ""},
		"#1 of 2":            {"## of #", " of "},
		"bad face, deadbeef": {"bad face, deadbeef", "bad face, deadbeef"},
		"Straße 12 ist zu":   {"Straße # ist zu", "Straße "},
		"http2: stream 7":    {"http#: stream #", ": stream "},
	} {
		pattern := Pattern(reason)
		piece := Piece(pattern)
		if pattern != want[0] || piece != want[1] {
			t.Errorf("%q: %q with %q, want %q", reason, pattern, piece, want)
		}
	}
}

func FuzzPattern_PieceIsInTheReason(f *testing.F) {
	f.Add("dial tcp 10.0.0.7:5432: # refused")
	f.Add(`topic "orders" isn't 'there'`)
	f.Fuzz(func(t *testing.T, reason string) {
		pattern := Pattern(reason)
		if piece := Piece(pattern); pattern != OtherReasons && !strings.Contains(reason, piece) {
			t.Errorf("%q has no %q", reason, piece)
		}
	})
}
