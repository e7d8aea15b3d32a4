package redisstore

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
)

// encodeOutcome returns names and values of the record's fields. What the outcome produced is split into what is kept
// and the content, which the record holds only while it is to be published.
func encodeOutcome(o dedupstore.Outcome, content bool) ([]any, error) {
	fields := []any{"kind", string(o.Kind)}
	if o.Exhausted {
		fields = append(fields, "exhausted", "1")
	}
	if o.Reason != "" {
		fields = append(fields, "reason", o.Reason)
	}
	if len(o.Result) > 0 {
		fields = append(fields, "result", o.Result)
	}
	if o.Truncated {
		fields = append(fields, "truncated", "1")
	}
	if len(o.Produced) == 0 {
		return fields, nil
	}
	contents := make([]contentJSON, len(o.Produced))
	for i, m := range o.Produced {
		contents[i].Payload = m.Payload
		for _, name := range slices.Sorted(maps.Keys(m.Header)) {
			contents[i].Header = append(contents[i].Header, [2]text{text(name), text(m.Header[name])})
		}
	}
	b, err := encodeStubs(o.Produced)
	if err != nil {
		return nil, err
	}
	fields = append(fields, "produced", b)
	if content {
		if b, err = json.Marshal(contents); err != nil {
			return nil, err
		}
		fields = append(fields, "content", b)
	}
	return fields, nil
}

// encodeStubs returns what is kept of messages once they are published.
func encodeStubs(produced []dedupstore.Produced) ([]byte, error) {
	if len(produced) == 0 {
		return nil, nil
	}
	stubs := make([]stubJSON, len(produced))
	for i, m := range produced {
		stubs[i] = stubJSON{ID: m.ID, Topic: text(m.Topic), Key: text(m.Key)}
	}
	return json.Marshal(stubs)
}

func decodeProduced(stubs, contents string, content bool) ([]dedupstore.Produced, error) {
	if stubs == "" {
		return nil, nil
	}
	var kept []stubJSON
	if err := json.Unmarshal([]byte(stubs), &kept); err != nil {
		return nil, err
	}
	produced := make([]dedupstore.Produced, len(kept))
	for i, m := range kept {
		produced[i] = dedupstore.Produced{ID: m.ID, Topic: string(m.Topic), Key: string(m.Key)}
	}
	if !content {
		return produced, nil
	}
	var full []contentJSON
	if err := json.Unmarshal([]byte(contents), &full); err != nil {
		return nil, err
	}
	if len(full) != len(kept) {
		return nil, errors.New("content and produced differ in length")
	}
	for i, m := range full {
		produced[i].Payload = m.Payload
		for _, pair := range m.Header {
			if produced[i].Header == nil {
				produced[i].Header = make(map[string]string, len(m.Header))
			}
			produced[i].Header[string(pair[0])] = string(pair[1])
		}
	}
	return produced, nil
}

type stubJSON struct {
	ID    string `json:"id"`
	Topic text   `json:"topic"`
	Key   text   `json:"key,omitempty"`
}

type contentJSON struct {
	Header  [][2]text `json:"header,omitempty"` // name and value, sorted by name
	Payload []byte    `json:"payload,omitempty"`
}

// text is a string that need not be UTF-8: such a one is written as {"base64": …}, because JSON strings would replace
// its bytes, and messages are published again with the bytes that they had.
type text string

type binary struct {
	Base64 []byte `json:"base64"`
}

func (s text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(s)) {
		return json.Marshal(string(s))
	}
	return json.Marshal(binary{[]byte(s)})
}

func (s *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw binary
		err := json.Unmarshal(b, &raw)
		*s = text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(s))
}
