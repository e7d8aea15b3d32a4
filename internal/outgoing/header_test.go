package outgoing

import (
	"testing"

	"github.com/oncemill/oncemill/producer"
)

// A dead letter that is replayed is still one, or nobody could run it again.
func TestHeader_OfAReplay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": producer.PurposeReplay, `{"oncemill-purpose":"dead-letter"}`: producer.PurposeDeadLetter,
	} {
		h, err := Header("1", []byte(text), 2)
		if err != nil || h.Get(producer.HeaderPurpose) != want || h.Get(producer.HeaderGeneration) != "2" {
			t.Errorf("%q: %v, %v", text, h, err)
		}
	}
}
