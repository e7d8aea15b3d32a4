package anytext_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/oncemill/oncemill/internal/anytext"
)

func TestHeader_KeepsItsBytes(t *testing.T) {
	t.Parallel()
	for _, want := range []map[string]string{
		nil, {"a": "b", "<&>": "\u2028", "": ""}, {"\xfd": "\xfc", "e": "\x00"}, {"{": "{}", "b": `{"base64":"/w=="}`},
	} {
		b, err := json.Marshal(anytext.HeaderOf(want))
		if err != nil {
			t.Fatal(err)
		}
		var h anytext.Header
		if err := json.Unmarshal(b, &h); err != nil || !maps.Equal(h.Map(), want) {
			t.Errorf("%q became %s, and that %q, %v", want, b, h.Map(), err)
		}
	}
	if got, _ := json.Marshal(anytext.HeaderOf(map[string]string{"b": "\xff", "a": "1"})); string(got) != `[["a","1"],["b",{"base64":"/w=="}]]` {
		t.Errorf("written as %s", got)
	}
}
