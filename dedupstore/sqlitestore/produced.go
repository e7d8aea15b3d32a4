package sqlitestore

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
)

// producedJSON is a produced message as a row keeps it.
type producedJSON struct {
	ID      string    `json:"id"`
	Topic   text      `json:"topic"`
	Key     text      `json:"key,omitempty"`
	Header  [][2]text `json:"header,omitempty"` // name and value
	Payload []byte    `json:"payload,omitzero"` // nil is not the same as empty
}

func encodeProduced(produced []dedupstore.Produced) ([]byte, error) {
	if len(produced) == 0 {
		return []byte{}, nil
	}
	rows := make([]producedJSON, len(produced))
	for i, m := range produced {
		rows[i] = producedJSON{ID: m.ID, Topic: text(m.Topic), Key: text(m.Key), Payload: m.Payload}
		for name, value := range m.Header {
			rows[i].Header = append(rows[i].Header, [2]text{text(name), text(value)})
		}
	}
	return json.Marshal(rows)
}

func decodeProduced(b []byte) ([]dedupstore.Produced, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var rows []producedJSON
	if err := json.Unmarshal(b, &rows); err != nil {
		return nil, err
	}
	produced := make([]dedupstore.Produced, len(rows))
	for i, m := range rows {
		produced[i] = dedupstore.Produced{ID: m.ID, Topic: string(m.Topic), Key: string(m.Key), Payload: m.Payload}
		for _, pair := range m.Header {
			if produced[i].Header == nil {
				produced[i].Header = make(map[string]string, len(m.Header))
			}
			produced[i].Header[string(pair[0])] = string(pair[1])
		}
	}
	return produced, nil
}

// text is a string that need not be UTF-8: such a one is written as {"base64": …}, because JSON strings would replace
// its bytes, and messages are published again with the bytes that they had.
type text string

type binary struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (s text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(s)) {
		return json.Marshal(string(s))
	}
	return json.Marshal(binary{[]byte(s)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw binary
		err := json.Unmarshal(b, &raw)
		*s = text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(s))
}
