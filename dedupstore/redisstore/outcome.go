package redisstore

import (
	"crypto/sha1" //nolint:gosec // see check
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/anytext"
)

// appendOutcome appends the sections of an outcome. Its messages are split into what is kept and their content, which
// the record holds only until they are published.
func appendOutcome(b []byte, o *dedupstore.Outcome, content bool) []byte {
	if o.Reason != "" {
		b = appendText(b, 'M', o.Reason)
	}
	if o.Truncated {
		b = append(b, 'X')
	}
	if len(o.Result) > 0 {
		b = appendText(b, 'B', o.Result)
	}
	if len(o.Produced) == 0 {
		return b
	}
	stubs := encodeStubs(o.Produced)
	b = appendText(b, 'K', stubs)
	if content {
		contents := encodeContents(o.Produced)
		b = appendText(append(append(b, 'h'), checksum(stubs, contents)...), 'C', contents)
	}
	return b
}

// checksum shows the claim script whether produced messages are intact, before they change hands.
func checksum(stubs, contents []byte) string {
	sum := sha1.Sum(slices.Concat(stubs, contents)) //nolint:gosec // Redis has it in Lua; it finds damage, not forgers
	return hex.EncodeToString(sum[:4])
}

// encodeStubs returns what is kept of messages once they are published.
func encodeStubs(produced []dedupstore.Produced) []byte {
	stubs := make([]stubJSON, len(produced))
	for i, m := range produced {
		stubs[i] = stubJSON{m.ID, anytext.Text(m.Topic), anytext.Text(m.Key)}
	}
	b, _ := json.Marshal(stubs) // of any bytes
	return b
}

func encodeContents(produced []dedupstore.Produced) []byte {
	contents := make([]contentJSON, len(produced))
	for i, m := range produced {
		contents[i] = contentJSON{anytext.HeaderOf(m.Header), m.Payload}
	}
	b, _ := json.Marshal(contents) // of any bytes
	return b
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
		produced[i].Header, produced[i].Payload = m.Header.Map(), m.Payload
	}
	return produced, nil
}

type stubJSON struct {
	ID    string       `json:"id"`
	Topic anytext.Text `json:"topic"`
	Key   anytext.Text `json:"key,omitempty"`
}

type contentJSON struct {
	Header  anytext.Header `json:"header,omitempty"`
	Payload []byte         `json:"payload,omitzero"` // nil is not the same as empty
}
