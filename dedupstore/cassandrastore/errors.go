package cassandrastore

import (
	"context"
	"errors"
	"fmt"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
)

// setup is an error of the table.
func (s *Store) setup(problem string, err error) error {
	return &dedupstore.SetupError{
		Package: "cassandrastore", Subject: "table " + s.cfg.located(), Problem: problem, Err: err,
	}
}

// inDoubt reports that Cassandra itself does not know whether a write was done. It may be done later, until a read at
// the serial consistency has settled it.
func inDoubt(err error) bool {
	var timeout *gocql.RequestErrWriteTimeout
	var unknown *gocql.RequestErrCASWriteUnknown
	return errors.As(err, &timeout) || errors.As(err, &unknown)
}

// failed makes an error of one of the driver.
func (s *Store) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, gocql.ErrTimeoutNoResponse) {
		return fmt.Errorf("cassandrastore: table %s: no answer within %v or the session's timeout: %w", s.cfg.located(),
			s.within, err)
	}
	var refused gocql.RequestError
	if errors.As(err, &refused) {
		switch refused.Code() {
		case gocql.ErrCodeUnauthorized:
			return s.setup("refuses the session's user a right: grant what the package doc of cassandrastore has", err)
		case gocql.ErrCodeInvalid: // what is wrong is said in words only
			l, looked := s.look(ctx)
			if looked != nil {
				break
			}
			if problem := l.unfit(); problem != "" {
				return s.setup(problem, err)
			}
		}
	}
	return fmt.Errorf("cassandrastore: table %s: %w", s.cfg.located(), err)
}
