package outgoing

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/producer"
)

// Header reads the header of a row. It may be empty: the ID has a column of its own. That of a row that was replayed
// says so, so that brokers do not take the copy for a duplicate. An error says that somebody else has written it.
func Header(id string, text []byte, replays int) (h producer.Header, err error) {
	if len(text) == 0 { // as most are
		h = producer.Header{producer.HeaderID: id}
	} else {
		if err := json.Unmarshal(text, &h); err != nil {
			return nil, fmt.Errorf("header cannot be read: %w", err)
		}
		if h == nil {
			h = producer.Header{}
		}
		set(h, producer.HeaderID, id)
	}
	if replays > 0 {
		generation, _ := strconv.Atoi(h.Get(producer.HeaderGeneration))  // 0: a first publication
		if h.Get(producer.HeaderPurpose) != producer.PurposeDeadLetter { // which it stays
			set(h, producer.HeaderPurpose, producer.PurposeReplay)
		}
		set(h, producer.HeaderGeneration, strconv.Itoa(generation+replays))
	}
	return h, nil
}

// set replaces a header, in any spelling.
func set(h producer.Header, name, value string) {
	maps.DeleteFunc(h, func(k, _ string) bool { return strings.EqualFold(k, name) })
	h[name] = value
}
