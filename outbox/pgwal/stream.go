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

// A stream is the connection that reads the log. One goroutine reads, another one confirms.
type stream struct {
	conn     *pgconn.PgConn
	decoder  decoder
	finished chan struct{} // closed when the reader has ended
}

const (
	writeTimeout = 5 * time.Second
	closeTimeout = 2 * time.Second
)

// open connects, and begins to read at the slot's confirmed place.
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
		return nil, r.explain("start replication", err)
	}
	return &stream{conn: conn, finished: make(chan struct{})}, nil
}

// connect makes a connection for replication. Each host has its own timeout, so that one that hangs leaves time for the
// next.
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
	if f.version >= 170000 { // the server sends each transaction inside a transaction, however long that takes
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
	_ = conn.Close(ctx) // it has done its job
}

// read hands on what the log shows, until the connection ends. Once ctx has ended it drops what is shown.
func (s *stream) read(ctx context.Context, to chan<- event) error {
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
			if e.kind == 0 {
				continue
			}
			select {
			case to <- e:
			case <-ctx.Done():
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyDone:
			return errors.New("pgwal: the server ended the stream")
		}
	}
}

const (
	burstEvents = 1000 // a transaction with one row has three
	burstBytes  = 4 << 20
)

// gather hands on together what was read meanwhile.
func gather(ctx context.Context, from <-chan event, to chan<- []event) {
	var burst []event
	bytes := 0 // of payloads
	for {
		in, out := from, to
		if len(burst) >= burstEvents || bytes >= burstBytes {
			in = nil
		}
		if len(burst) == 0 {
			out = nil
		}
		select {
		case e := <-in:
			burst = append(burst, e)
			if e.row != nil {
				bytes += len(e.row.message.Payload)
			}
		case out <- burst:
			burst, bytes = nil, 0
		case <-ctx.Done():
			return
		}
	}
}

// confirm tells the server that everything before lsn is settled, and asks for an answer. It may be called beside the
// reader. It writes past pgx: once a read has failed, pgx says goodbye from a goroutine of its own, through the buffer
// that pglogrepl would use.
func (s *stream) confirm(lsn pglogrepl.LSN) error {
	status := []byte{pglogrepl.StandbyStatusUpdateByteID}
	for range 3 { // written, flushed, applied
		status = binary.BigEndian.AppendUint64(status, uint64(lsn))
	}
	status = binary.BigEndian.AppendUint64(status, uint64(time.Since(epoch).Microseconds()))
	status = append(status, 1) // asks for an answer
	message, err := (&pgproto3.CopyData{Data: status}).Encode(nil)
	if err != nil {
		return err
	}
	conn := s.conn.Conn()
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(message)
	return err
}

// leave confirms for the last time, and ends the reader. If the server misses that, it shows the same again, and the
// table says what is settled.
func (s *stream) leave(lsn pglogrepl.LSN) {
	_ = s.confirm(lsn)
	_ = s.conn.Conn().SetReadDeadline(time.Unix(0, 0))
	<-s.finished
	if !s.conn.IsClosed() { // else pgx closes it under a deadline of its own
		_ = s.conn.Conn().SetDeadline(time.Time{})
	}
}
