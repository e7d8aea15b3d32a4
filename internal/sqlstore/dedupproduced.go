package sqlstore

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/oncemill/oncemill/dedupstore"
)

// The encoding of produced messages: a byte that says which, the number of messages, and texts of any bytes with their
// lengths before them. What is kept of messages (IDs, topics, keys) is apart from what is not (headers, payloads).
const encoding = 1

var errEncoding = errors.New("has produced messages that cannot be read")

// EncodeStubs encodes what is kept of messages; nil for none.
func EncodeStubs(produced []dedupstore.Produced) []byte {
	if len(produced) == 0 {
		return nil
	}
	b := binary.AppendUvarint([]byte{encoding}, uint64(len(produced)))
	for _, p := range produced {
		b = appendText(appendText(appendText(b, p.ID), p.Topic), p.Key)
	}
	return b
}

// EncodeContents encodes what is kept of messages until they are published.
func EncodeContents(produced []dedupstore.Produced) []byte {
	b := binary.AppendUvarint([]byte{encoding}, uint64(len(produced)))
	for _, p := range produced {
		if p.Payload == nil { // which is another message than an empty one
			b = append(b, 0)
		} else {
			b = appendText(append(b, 1), p.Payload)
		}
		b = binary.AppendUvarint(b, uint64(len(p.Header)))
		for _, name := range slices.Sorted(maps.Keys(p.Header)) {
			b = appendText(appendText(b, name), p.Header[name])
		}
	}
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// DecodeProduced reads messages. Without contents there are no headers and payloads.
func DecodeProduced(stubs, contents []byte) ([]dedupstore.Produced, error) {
	if len(stubs) == 0 {
		if len(contents) > 0 {
			return nil, errEncoding
		}
		return nil, nil
	}
	s := decoder{rest: stubs}
	produced := make([]dedupstore.Produced, s.begin())
	for i := range produced {
		produced[i] = dedupstore.Produced{ID: s.text(), Topic: s.text(), Key: s.text()}
	}
	c := decoder{rest: contents}
	if contents != nil && c.begin() == len(produced) {
		for i := range produced {
			c.content(&produced[i])
		}
	} else if contents != nil {
		c.bad = true
	}
	if s.bad || c.bad || len(s.rest) > 0 || len(c.rest) > 0 {
		return nil, errEncoding
	}
	return produced, nil
}

// A decoder reads what the functions above wrote. Once something is wrong, it reads nothing more.
type decoder struct {
	rest []byte
	bad  bool
}

// begin reads how many messages there are.
func (d *decoder) begin() int {
	if len(d.rest) == 0 || d.rest[0] != encoding {
		d.bad = true
		return 0
	}
	d.rest = d.rest[1:]
	return d.count()
}

// count reads a number of things of which each takes at least a byte, or the length of a text.
func (d *decoder) count() int {
	n, size := binary.Uvarint(d.rest)
	if d.bad || size <= 0 || n > uint64(len(d.rest)-size) {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[size:]
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.count()
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) text() string { return string(d.bytes()) }

func (d *decoder) content(p *dedupstore.Produced) {
	if d.count() > 0 {
		p.Payload = append([]byte{}, d.bytes()...)
	}
	n := d.count()
	if n > 0 {
		p.Header = make(map[string]string, n)
	}
	for range n {
		name := d.text()
		p.Header[name] = d.text()
	}
}
