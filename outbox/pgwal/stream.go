package pgwal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A stream is the connection that reads the log. One goroutine reads, another one confirms: they share no buffer.
type stream struct {
	conn     *pgconn.PgConn
	decoder  decoder
	reading  atomic.Int64  // since when the reader waits for the server, Unix nanoseconds; 0: it does not
	silence  time.Duration // longer means that the server is gone: it answers each heartbeat, if it is not busy
	finished chan struct{}
}

const (
	writeTimeout = 5 * time.Second
	closeTimeout = 2 * time.Second
)

// open connects and begins to read where the slot is confirmed.
func (r *Relay) open(ctx context.Context, f facts) (*stream, error) {
	conn, err := r.connect(ctx, f)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	options := pglogrepl.StartReplicationOptions{Mode: pglogrepl.LogicalReplication, PluginArgs: []string{
		"proto_version '1'", "publication_names '" + r.cfg.Publication + "'", "binary 'true'",
	}}
	if r.cfg.messages() {
		options.PluginArgs = append(options.PluginArgs, "messages 'true'")
	}
	if err := pglogrepl.StartReplication(ctx, conn, quoted(r.cfg.Slot), 0, options); err != nil {
		closeConn(ctx, conn)
		if hasCode(err, codeInUse) {
			return nil, err
		}
		return nil, r.explain("start replication", err)
	}
	return &stream{conn: conn, decoder: decoder{prefix: r.cfg.Prefix, table: f.table}, silence: r.silence, finished: make(chan struct{})}, nil
}

// connect makes a connection for replication. Each host has a StoreTimeout of its own: one that hangs must not take the time of the
// next.
func (r *Relay) connect(ctx context.Context, f facts) (*pgconn.PgConn, error) {
	pool := r.cfg.Pool.Config()
	config := pool.ConnConfig.Copy()
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = r.cfg.StoreTimeout
	}
	if pool.BeforeConnect != nil { // passwords that expire are renewed there
		bounded, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
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

// read hands on what the log shows, until the connection ends. When ctx has ended it reads on and hands on nothing: the
// server may be writing, and would not see that we leave.
func (s *stream) read(ctx context.Context, to func(context.Context, event)) error {
	defer close(s.finished)
	for {
		s.reading.Store(time.Now().UnixNano())
		m, err := s.conn.ReceiveMessage(context.Background()) // watching a context costs more than reading
		s.reading.Store(0)
		if err != nil {
			return err
		}
		var e event
		switch m := m.(type) {
		case *pgproto3.CopyData:
			if ctx.Err() != nil {
				continue
			}
			if e, err = s.decoder.decode(m.Data); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyDone:
			return errors.New("pgwal: the server ended the stream")
		}
		if e.kind == 0 {
			continue
		}
		to(ctx, e)
	}
}

// silent says whether the server has not answered for too long.
func (s *stream) silent() bool {
	since := s.reading.Load()
	return since != 0 && time.Since(time.Unix(0, since)) > s.silence
}

// confirm tells the server that everything before lsn is settled, and asks for an answer.
func (s *stream) confirm(lsn pglogrepl.LSN) error {
	b := []byte{'d', 0, 0, 0, 38, pglogrepl.StandbyStatusUpdateByteID}
	for range 3 { // written, flushed, applied
		b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(time.Since(epoch).Microseconds()))
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

// leave confirms for the last time, and waits until the server has seen it: a connection that is cut takes along what it
// carries.
func (s *stream) leave(lsn pglogrepl.LSN) {
	var err error
	if lsn != 0 {
		err = s.confirm(lsn)
	}
	if err == nil {
		err = s.write([]byte{'c', 0, 0, 0, 4}) // CopyDone
	}
	if err == nil {
		t := time.NewTimer(closeTimeout)
		defer t.Stop()
		select {
		case <-s.finished:
		case <-t.C:
		}
	}
	s.stopReading()
}

// stopReading ends the reader, and waits for that.
func (s *stream) stopReading() {
	_ = s.conn.Conn().SetReadDeadline(epoch)
	<-s.finished
	_ = s.conn.Conn().SetDeadline(time.Time{})
}

func (s *stream) close(ctx context.Context) { closeConn(ctx, s.conn) }
