package sqlstore_test

import (
	"reflect"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestProduced_EmptyPayloadsStayApartFromTombstones(t *testing.T) {
	t.Parallel()
	produced := []dedupstore.Produced{{ID: "empty", Payload: []byte{}}, {ID: "nil"}}
	stubs, contents := sqlstore.EncodeStubs(produced), sqlstore.EncodeContents(produced)
	if got, err := sqlstore.DecodeProduced(stubs, contents); err != nil || !reflect.DeepEqual(got, produced) {
		t.Errorf("read %+v, %v, want %+v", got, err, produced)
	}
}
