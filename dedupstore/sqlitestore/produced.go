package sqlitestore

import (
	"encoding/json"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/anytext"
)

// producedJSON is a produced message as a row keeps it.
type producedJSON struct {
	ID      string         `json:"id"`
	Topic   anytext.Text   `json:"topic"`
	Key     anytext.Text   `json:"key,omitempty"`
	Header  anytext.Header `json:"header,omitempty"`
	Payload []byte         `json:"payload,omitzero"` // nil is not the same as empty
}

func encodeProduced(produced []dedupstore.Produced) ([]byte, error) {
	if len(produced) == 0 {
		return []byte{}, nil
	}
	rows := make([]producedJSON, len(produced))
	for i, m := range produced {
		rows[i] = producedJSON{
			m.ID, anytext.Text(m.Topic), anytext.Text(m.Key), anytext.HeaderOf(m.Header), m.Payload,
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
		produced[i] = dedupstore.Produced{
			ID: m.ID, Topic: string(m.Topic), Key: string(m.Key), Header: m.Header.Map(), Payload: m.Payload,
		}
	}
	return produced, nil
}
