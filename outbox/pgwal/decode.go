package pgwal

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/producer"
)

// An event is what the log shows, in its order.
type event struct {
	kind eventKind
	lsn  pglogrepl.LSN // committed, alive: everything before it has been shown
	row  *row          // written
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
	table   uint32         // OID
	columns map[string]int // of the table, once it was described
}

func (d *decoder) decode(data []byte) (event, error) {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		m, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		return event{kind: alive, lsn: m.ServerWALEnd}, err
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return event{}, err
		}
		m, err := pglogrepl.Parse(x.WALData)
		if err != nil {
			return event{}, fmt.Errorf("pgwal: read the log at %s: %w", x.WALStart, err)
		}
		switch m := m.(type) {
		case *pglogrepl.BeginMessage:
			return event{kind: began}, nil
		case *pglogrepl.CommitMessage:
			return event{kind: committed, lsn: m.TransactionEndLSN}, nil
		case *pglogrepl.RelationMessage:
			return event{}, d.relation(m)
		case *pglogrepl.InsertMessage:
			return d.insert(m)
		}
	}
	return event{}, nil
}

func (d *decoder) relation(m *pglogrepl.RelationMessage) error {
	if m.RelationID != d.table {
		return nil
	}
	d.columns = map[string]int{}
	for i, c := range m.Columns {
		switch c.Name {
		case "aggregatetype":
			d.columns["topic"] = i
		case "aggregateid":
			d.columns["key"] = i
		default:
			d.columns[c.Name] = i
		}
	}
	for _, name := range [...]string{"number", "written_at", "due_at", "published_at", "dead_at",
		"id", "topic", "key", "header", "payload"} {
		if _, there := d.columns[name]; !there {
			return unfit(fmt.Sprintf("outbox table %q", m.RelationName),
				"lacks a column in the publication: publish all columns, and call pgoutbox's Migrate", nil)
		}
	}
	return nil
}

// insert reads a row that is due at once. The others are found in the table when they are due.
func (d *decoder) insert(m *pglogrepl.InsertMessage) (event, error) {
	if m.RelationID != d.table {
		return event{}, nil
	}
	get := func(column string) []byte { // nil: NULL
		if i, there := d.columns[column]; there && i < len(m.Tuple.Columns) {
			return m.Tuple.Columns[i].Data
		}
		return nil
	}
	if get("due_at") != nil || get("published_at") != nil || get("dead_at") != nil {
		return event{}, nil
	}
	number, at := get("number"), get("written_at")
	if len(number) != 8 || len(at) != 8 {
		return event{}, unfit("the outbox table", "has columns of other types than this package knows", nil)
	}
	r := &row{rowID: rowID{int64(binary.BigEndian.Uint64(number)), int64(binary.BigEndian.Uint64(at))}}
	r.message = producer.Message{ID: string(get("id")), Topic: string(get("topic")), Key: string(get("key")),
		Payload: get("payload")}
	r.readHeader(get("header"))
	return event{kind: written, row: r}, nil
}

// readHeader reads a header that somebody else may have written. If it cannot, the row becomes dead.
func (r *row) readHeader(text []byte) {
	header, err := outgoing.Header(r.message.ID, text, r.replays)
	if err != nil {
		r.problem = err.Error()
	}
	r.message.Header = header
}
