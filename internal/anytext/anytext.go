// Package anytext writes strings to JSON that need not be UTF-8. JSON strings would replace their bytes, and messages
// are published again with the bytes that they had.
package anytext

import (
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"
)

// A Text that is not UTF-8 is written as {"base64": …}.
type Text string

type binary struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (s Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(s)) {
		return json.Marshal(string(s))
	}
	return json.Marshal(binary{[]byte(s)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw binary
		err := json.Unmarshal(b, &raw)
		*s = Text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(s))
}

// A Header is a message's: pairs of names and values, sorted by name.
type Header [][2]Text

// HeaderOf returns the pairs of a map.
func HeaderOf(m map[string]string) (h Header) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		h = append(h, [2]Text{Text(name), Text(m[name])})
	}
	return h
}

// Map returns the pairs as a map; nil: there are none.
func (h Header) Map() map[string]string {
	if len(h) == 0 {
		return nil
	}
	m := make(map[string]string, len(h))
	for _, pair := range h {
		m[string(pair[0])] = string(pair[1])
	}
	return m
}
