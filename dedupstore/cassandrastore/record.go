package cassandrastore

import (
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// maxRecord is how large a record may be. By default Cassandra takes twice as much, half a segment of its log.
const maxRecord = 8 << 20

// decode reads the columns of a row; nulls are no record. The error is a [*dedupstore.RecordError].
func decode(name string, number int64, rec []byte) (r recordstore.Revision, err error) {
	switch {
	case number == 0 && rec == nil:
		return r, nil
	case number == 0 || rec == nil:
		err = errors.New("is no record of this store: it lacks rev or rec")
	default:
		r.Number = number
		r.Record, err = recordstore.Decode(rec)
	}
	if err != nil {
		return recordstore.Revision{}, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return r, nil
}
