package producer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/oncemill/oncemill/producer"
)

func callID(t testing.TB, conversation, step, tool string, args any) string {
	t.Helper()
	id, err := producer.CallID(conversation, step, tool, args)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestCallID_IsTheSameHoweverTheArgumentsAreWritten(t *testing.T) {
	t.Parallel()
	const want = "250b2f5d-d86e-8f69-a81f-2b8b46f2373a" // for ever: a changed derivation makes every repeated call a new one
	type refund struct {
		Order string  `json:"order"`
		Euros float64 `json:"euros"`
	}
	for _, args := range []any{
		refund{"4711", 12.5},
		&refund{"4711", 12.5},
		map[string]any{"euros": 12.50, "order": "4711"},
		json.RawMessage(`{"order":"4711","euros":12.5}`),
		json.RawMessage(` { "euros" : 1.25e1, "order" : "\u0034711" } `),
		[]byte(`{"euros":12.500,"order":"4711"}`),
	} {
		if got := callID(t, "ticket-17", "2", "refund", args); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestCallID_DiffersWithEachPart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, c := range []struct {
		conversation, step, tool string
		args                     any
	}{
		{"c", "1", "refund", nil},
		{"d", "1", "refund", nil},
		{"c", "2", "refund", nil},
		{"c", "", "refund", nil},
		{"c", "1", "cancel", nil},
		{"c1", "", "refund", nil},
		{"c", "1refund", "refund", nil},
		{"c", "1", "refund", map[string]int{}},
		{"c", "1", "refund", map[string]int{"cents": 1}},
		{"c", "1", "refund", map[string]string{"cents": "1"}},
		{"c", "1", "refund", []int{1}},
	} {
		id := callID(t, c.conversation, c.step, c.tool, c.args)
		if other, twice := seen[id]; twice {
			t.Errorf("%v has the ID of %s", c, other)
		}
		seen[id] = fmt.Sprint(c)
	}
}

func TestCallID_RefusesWhatIsNoIdentity(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		conversation, tool string
		args               any
		field              string
	}{
		{"", "refund", nil, "conversation"},
		{"c", "", nil, "tool"},
		{"c", "refund", `{"order":1}`, "args"},
		{"c", "refund", func() {}, "args"},
		{"c", "refund", math.NaN(), "args"},
		{"c", "refund", map[string]int64{"order": 1<<53 + 1}, "args"},
		{"c", "refund", json.RawMessage(`{"a":1,"a":2}`), "args"},
		{"c", "refund", []byte(`{"a":1} {}`), "args"},
		{"c", "refund", []byte(nil), "args"},
		{"c", "refund", json.RawMessage(nil), "args"},
		{"c", "refund", map[string]string{"order": "A\xff"}, "args"},
		{"c", "refund", map[string]string{"A\xff": "order"}, "args"},
		{"c", "refund", []string{`\\`, "A\xff"}, "args"},
		{"c", "refund", json.RawMessage("\"A\xff\""), "args"},
		{"c", "refund", map[string]any{"order": json.RawMessage("\"A\xff\"")}, "args"},
	} {
		_, err := producer.CallID(tc.conversation, "", tc.tool, tc.args)
		wantInvalid(t, err, tc.field)
	}
}

func TestCallID_TakesTextThatOnlyLooksReplaced(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]any{
		"\uFFFD":      {[]string{"\uFFFD"}, json.RawMessage(`["\ufffd"]`), []byte("[\"\uFFFD\"]")},
		`\ufffd`:      {[]string{`\ufffd`}, json.RawMessage(`["\\ufffd"]`)},
		`\\ufffd`:     {[]string{`\\ufffd`}},
		`a\`:          {[]string{`a\`}},
		"\u2028<a>\\": {[]string{"\u2028<a>\\"}},
	} {
		want := callID(t, "c", "", "refund", args[0])
		for _, a := range args {
			if got := callID(t, "c", "", "refund", a); got != want {
				t.Errorf("%q as %T: %s, want %s", text, a, got, want)
			}
		}
	}
}

func ExampleCallID() {
	type refund struct {
		Order string `json:"order"`
		Cents int    `json:"cents"`
	}
	first, err := producer.CallID("ticket-17", "1", "refund", refund{"4711", 1250})
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := producer.CallID("ticket-17", "1", "refund", json.RawMessage(`{ "cents": 1250, "order": "4711" }`))
	fmt.Println(first == again, err)
	// Output: true <nil>
}
