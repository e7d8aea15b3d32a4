package pgwal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A stream is the connection that reads the log. One goroutine reads, another one confirms: they share no buffer.
type stream struct {
	conn     *pgconn.PgConn
	decoder  decoder
	finished chan struct{} // closed when the reader has ended

	beat           time.Duration // the longest time between two confirmations
	sent           pglogrepl.LSN // confirmed
	sentAt, beatAt time.Time
}

const (
	confirmEvery = 100 * time.Millisecond
	longestBeat  = 5 * time.Second
	writeTimeout = 5 * time.Second
	closeTimeout = 2 * time.Second
)

// open connects and begins to read where the slot is confirmed.
func (r *Relay) open(ctx context.Context, f facts) (*stream, error) {
	conn, err := r.connect(ctx, f)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	options := pglogrepl.StartReplicationOptions{Mode: pglogrepl.LogicalReplication, PluginArgs: []string{
		"proto_version '1'", "publication_names '" + r.cfg.Slot + "'", "binary 'true'",
	}}
	if err := pglogrepl.StartReplication(ctx, conn, quoted(r.cfg.Slot), 0, options); err != nil {
		closeConn(ctx, conn)
		if hasCode(err, codeInUse) {
			return nil, err
		}
		return nil, r.explain("start replication", err)
	}
	beat := longestBeat
	if f.senderTimeout > 0 {
		beat = min(beat, f.senderTimeout/4)
	}
	return &stream{conn: conn, decoder: decoder{table: f.table}, finished: make(chan struct{}), beat: beat,
		beatAt: time.Now()}, nil
}

// connect makes a connection for replication. Each host has a timeout of its own: one that hangs must not take the time
// of the next.
func (r *Relay) connect(ctx context.Context, f facts) (*pgconn.PgConn, error) {
	pool := r.cfg.Pool.Config()
	config := pool.ConnConfig.Copy()
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = r.limits.storeTimeout
	}
	if pool.BeforeConnect != nil { // passwords that expire are renewed there
		bounded, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
		defer cancel()
		if err := pool.BeforeConnect(bounded, config); err != nil {
			return nil, fmt.Errorf("pgwal: BeforeConnect of the pool: %w", err)
		}
	}
	if config.RuntimeParams == nil {
		config.RuntimeParams = map[string]string{}
	}
	config.RuntimeParams["replication"] = "database"
	if f.version >= 170000 { // the server decodes a transaction in one of its own, for as long as it takes to send
		config.RuntimeParams["transaction_timeout"] = "0"
	}
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, r.explain("connect for replication", err)
	}
	return conn, nil
}

func closeConn(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it is not needed any more
}

// read hands on what the log shows, until the connection ends.
func (s *stream) read(ctx context.Context, to *intake) error {
	defer close(s.finished)
	for {
		m, err := s.conn.ReceiveMessage(context.Background()) // watching a context costs more than reading
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.CopyData:
			e, err := s.decoder.decode(m.Data)
			if err != nil {
				return err
			}
			if e.kind != 0 {
				to.put(ctx, e)
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyDone:
			return errors.New("pgwal: the server ended the stream")
		}
	}
}

// next is when the server is to be told what is settled, and that somebody is here.
func (s *stream) next(settled pglogrepl.LSN) time.Time {
	if soon := s.sentAt.Add(confirmEvery); settled > s.sent && soon.Before(s.beatAt) {
		return soon
	}
	return s.beatAt
}

// confirm tells the server that everything before lsn is settled, and asks for an answer.
func (s *stream) confirm(lsn pglogrepl.LSN) error {
	now := time.Now()
	s.sent, s.sentAt, s.beatAt = lsn, now, now.Add(s.beat)
	b := []byte{'d', 0, 0, 0, 38, pglogrepl.StandbyStatusUpdateByteID}
	for range 3 { // written, flushed, applied
		b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(now.Sub(epoch).Microseconds()))
	return s.write(append(b, 1))
}

// epoch is where PostgreSQL's time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// write writes beside the reader, and so past the buffers of the connection.
func (s *stream) write(b []byte) error {
	c := s.conn.Conn()
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// leave confirms for the last time, and ends the reader. Should the server not see it, it shows the same once more, and
// the table says what of it is settled.
func (s *stream) leave(lsn pglogrepl.LSN) {
	if lsn != 0 {
		_ = s.confirm(lsn)
	}
	_ = s.conn.Conn().SetReadDeadline(epoch)
	<-s.finished
	_ = s.conn.Conn().SetDeadline(time.Time{})
}

func (s *stream) close(ctx context.Context) { closeConn(ctx, s.conn) }
