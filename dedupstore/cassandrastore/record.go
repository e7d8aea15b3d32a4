package cassandrastore

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// maxRecord is how large a record may be. By default Cassandra takes twice as much, half a segment of its log.
const maxRecord = 8 << 20

// A revision is a record as it was written once. Its number is random, and 0 if there is none.
type revision struct {
	number int64
	record dedupstore.Stored
}

func newRevision(record *dedupstore.Stored) revision {
	return revision{1 + rand.Int64N(math.MaxInt64), *record}
}

// decode reads the columns of a row; nulls are no record. The error is a [*dedupstore.RecordError].
func decode(name string, number int64, rec []byte) (r revision, err error) {
	switch {
	case number == 0 && rec == nil:
		return r, nil
	case number == 0 || rec == nil:
		err = errors.New("is no record of this store: it lacks rev or rec")
	default:
		r.number = number
		r.record, err = recordstore.Decode(rec)
	}
	if err != nil {
		return revision{}, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return r, nil
}

// recent are the records of claims that this store granted, as it wrote them last: what comes next need not be read.
// The zero value is ready to use.
type recent struct {
	mu   sync.Mutex
	last map[dedupstore.Key]revision
}

// maxRecent is how many records are remembered, of a few hundred bytes each.
const maxRecent = 1 << 14

func (r *recent) get(key dedupstore.Key) (revision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, known := r.last[key]
	return seen, known
}

// put remembers a record that somebody owns, and forgets others, which nobody writes soon. Outcomes are not remembered:
// they may be large, and their bytes are the caller's. If there are too many records, any other goes.
func (r *recent) put(key dedupstore.Key, written revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &written.record
	if rec.State != dedupstore.Running &&
		(rec.State != dedupstore.Publishing || len(rec.Outcome.Result)+len(rec.Outcome.Produced) > 0) {
		delete(r.last, key)
		return
	}
	if r.last == nil {
		r.last = map[dedupstore.Key]revision{}
	}
	if _, known := r.last[key]; !known && len(r.last) >= maxRecent {
		for other := range r.last {
			delete(r.last, other)
			break
		}
	}
	r.last[key] = written
}

func (r *recent) forget(key dedupstore.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
}
