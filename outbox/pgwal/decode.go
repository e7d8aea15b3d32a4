package pgwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/producer"
)

// An event is what the log shows, in its order.
type event struct {
	kind eventKind
	lsn  pglogrepl.LSN // committed, alive: everything before it has been shown
	row  *row          // written
	ping bool          // alive: the server wants an answer
}

type eventKind int

const (
	began eventKind = iota + 1
	written
	committed
	alive
)

// A decoder turns the protocol of pgoutput, version 1 with binary values, into events.
type decoder struct {
	table   uint32  // OID
	columns columns // of the table, once it was described
	told    bool    // it was

	values [][]byte // of a row, in the same memory always
	topic  string   // of the row before: most have the same
}

var errShort = errors.New("pgwal: a message of the server is cut short")

func (d *decoder) decode(data []byte) (event, error) {
	if len(data) == 0 {
		return event{}, errShort
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		m, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		return event{kind: alive, lsn: m.ServerWALEnd, ping: m.ReplyRequested}, err
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil || len(x.WALData) == 0 {
			return event{}, err
		}
		return d.change(x)
	}
	return event{}, nil
}

func (d *decoder) change(x pglogrepl.XLogData) (event, error) {
	data := x.WALData[1:]
	switch pglogrepl.MessageType(x.WALData[0]) { // for most messages, what pglogrepl makes of them is slow
	case pglogrepl.MessageTypeInsert:
		return d.insert(data)
	case pglogrepl.MessageTypeBegin:
		return event{kind: began}, nil
	case pglogrepl.MessageTypeCommit: // flags, place of the commit, its end, time
		if len(data) < 1+8+8+8 {
			return event{}, errShort
		}
		return event{kind: committed, lsn: pglogrepl.LSN(binary.BigEndian.Uint64(data[1+8:]))}, nil
	case pglogrepl.MessageTypeRelation:
		m, err := pglogrepl.Parse(x.WALData)
		if err != nil {
			return event{}, fmt.Errorf("pgwal: read the log at %s: %w", x.WALStart, err)
		}
		return event{}, d.relation(m.(*pglogrepl.RelationMessage))
	}
	return event{}, nil
}

// columns are the indexes of the table's columns.
type columns struct{ number, written, due, published, dead, id, topic, key, header, replays, payload int }

func (d *decoder) relation(m *pglogrepl.RelationMessage) error {
	if m.RelationID != d.table {
		return nil
	}
	names := make([]string, len(m.Columns))
	for i, c := range m.Columns {
		names[i] = c.Name
	}
	at := func(choices ...string) int {
		return slices.IndexFunc(names, func(name string) bool { return slices.Contains(choices, name) })
	}
	c := columns{
		number: at("number"), written: at("written_at"), due: at("due_at"), published: at("published_at"),
		dead: at("dead_at"),
		id:   at("id"), topic: at("topic", "aggregatetype"), key: at("key", "aggregateid"), header: at("header"),
		replays: at("replays"), payload: at("payload"),
	}
	for _, i := range [...]int{c.number, c.written, c.due, c.published, c.dead, c.id, c.topic, c.key, c.header,
		c.payload} {
		if i < 0 {
			return unfit(fmt.Sprintf("outbox table %q", m.RelationName),
				"lacks a column in the publication: publish all columns, and call pgoutbox's Migrate", nil)
		}
	}
	d.columns, d.told = c, true
	return nil
}

// insert reads a row that is new and due: the others are found in the table when they are due.
func (d *decoder) insert(b []byte) (event, error) {
	if len(b) < 7 {
		return event{}, errShort
	}
	if !d.told || binary.BigEndian.Uint32(b) != d.table {
		return event{}, nil
	}
	c := d.columns
	values, err := tuple(d.values[:0], b[5:])
	if err != nil {
		return event{}, err
	}
	d.values = values
	get := func(i int) []byte {
		if i < 0 || i >= len(values) {
			return nil
		}
		return values[i]
	}
	if get(c.due) != nil || get(c.published) != nil || get(c.dead) != nil {
		return event{}, nil
	}
	if len(get(c.number)) != 8 || len(get(c.written)) != 8 {
		return event{}, unfit("the outbox table", "has columns of other types than this package knows", nil)
	}
	r := &row{number: int64(binary.BigEndian.Uint64(get(c.number))), at: int64(binary.BigEndian.Uint64(get(c.written)))}
	if topic := get(c.topic); string(topic) != d.topic {
		d.topic = string(topic)
	}
	r.message = producer.Message{ID: string(get(c.id)), Topic: d.topic, Key: string(get(c.key)),
		Payload: slices.Clone(get(c.payload))}
	r.readHeader(get(c.header))
	return event{kind: written, row: r}, nil
}

// tuple appends the values of a row, which are part of b; nil: NULL.
func tuple(values [][]byte, b []byte) ([][]byte, error) {
	if len(b) < 2 {
		return nil, errShort
	}
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	for range n {
		if len(b) < 1 {
			return nil, errShort
		}
		kind := b[0]
		b = b[1:]
		if kind != pglogrepl.TupleDataTypeBinary && kind != pglogrepl.TupleDataTypeText {
			values = append(values, nil)
			continue
		}
		if len(b) < 4 || uint64(len(b)-4) < uint64(binary.BigEndian.Uint32(b)) {
			return nil, errShort
		}
		end := 4 + int(binary.BigEndian.Uint32(b))
		values, b = append(values, b[4:end:end]), b[end:]
	}
	return values, nil
}

// readHeader reads a header that somebody else may have written: one that cannot be read makes the row dead.
func (r *row) readHeader(text []byte) {
	header, err := outgoing.Header(r.message.ID, text, r.replays)
	if err != nil {
		r.problem = err.Error()
	}
	r.message.Header = header
}
