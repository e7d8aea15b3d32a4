package redisstore

import (
	"crypto/sha1" //nolint:gosec // see check
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
)

// appendOutcome appends the sections of an outcome. What it produced is split into what is kept and the content, which
// the record holds only while it is to be published.
func appendOutcome(b []byte, o dedupstore.Outcome, content bool) ([]byte, error) {
	stubs, err := encodeStubs(o.Produced)
	if err != nil {
		return nil, err
	}
	var contents []byte
	if content {
		if contents, err = encodeContents(o.Produced); err != nil {
			return nil, err
		}
		b = append(append(b, 'h'), check(stubs, contents)...)
	}
	if o.Reason != "" {
		b = appendText(b, 'M', o.Reason)
	}
	if o.Truncated {
		b = append(b, 'X')
	}
	for _, section := range [...]struct {
		letter byte
		value  []byte
	}{{'B', o.Result}, {'K', stubs}, {'C', contents}} {
		if len(section.value) > 0 {
			b = appendText(b, section.letter, section.value)
		}
	}
	return b, nil
}

// check is by what the claim script tells whether produced messages can be read, before they change hands.
func check(stubs, contents []byte) string {
	h := sha1.New() //nolint:gosec // the hash that Lua has in Redis; it finds damage, not forgers
	h.Write(stubs)
	h.Write(contents)
	return hex.EncodeToString(h.Sum(nil))[:8]
}

func encodeContents(produced []dedupstore.Produced) ([]byte, error) {
	contents := make([]contentJSON, len(produced))
	for i, m := range produced {
		contents[i].Payload = m.Payload
		for _, name := range slices.Sorted(maps.Keys(m.Header)) {
			contents[i].Header = append(contents[i].Header, [2]text{text(name), text(m.Header[name])})
		}
	}
	return json.Marshal(contents)
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
	Payload []byte    `json:"payload,omitzero"` // nil is not the same as empty
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
