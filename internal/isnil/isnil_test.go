package isnil_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/isnil"
)

func TestNil_FindsWhatAnInterfaceHides(t *testing.T) {
	t.Parallel()
	var (
		pointer *int
		table   map[string]int
		channel chan int
		call    func()
		err     error
	)
	for _, v := range []any{nil, pointer, table, channel, call, err} {
		if !isnil.Nil(v) {
			t.Errorf("a nil %T passes for a value", v)
		}
	}
	for _, v := range []any{0, "", new(int), map[string]int{}, func() {}, struct{}{}, []int(nil)} {
		if isnil.Nil(v) {
			t.Errorf("a %T is taken for nil", v)
		}
	}
}
