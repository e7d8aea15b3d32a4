package sqlstore_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var produced = []dedupstore.Produced{
	{ID: "empty", Payload: []byte{}},
	{ID: "nil", Topic: "orders", Key: "7"},
	{ID: strings.Repeat("long", 100), Payload: []byte{0, 255}, Header: map[string]string{"a": "1", "b": "", "": "c"}},
}

func TestProduced_EmptyPayloadsStayApartFromTombstones(t *testing.T) {
	t.Parallel()
	stubs, contents := sqlstore.EncodeStubs(produced), sqlstore.EncodeContents(produced)
	if got, err := sqlstore.DecodeProduced(stubs, contents); err != nil || !reflect.DeepEqual(got, produced) {
		t.Errorf("read %+v, %v, want %+v", got, err, produced)
	}
}

func TestProduced_WithoutContentsThereAreStubs(t *testing.T) {
	t.Parallel()
	got, err := sqlstore.DecodeProduced(sqlstore.EncodeStubs(produced), nil)
	if err != nil || len(got) != 3 || !reflect.DeepEqual(got[1], produced[1]) || got[2].ID != produced[2].ID ||
		got[2].Header != nil || got[2].Payload != nil {
		t.Errorf("read %+v, %v", got, err)
	}
	if b := sqlstore.EncodeStubs(nil); b != nil {
		t.Errorf("no messages are %x, want nothing", b)
	}
	if got, err := sqlstore.DecodeProduced(nil, []byte{}); got != nil || err != nil {
		t.Errorf("of nothing %+v, %v was read", got, err)
	}
}

func TestProduced_WhatIsDamagedIsRefused(t *testing.T) {
	t.Parallel()
	stubs, contents := sqlstore.EncodeStubs(produced), sqlstore.EncodeContents(produced)
	refused := func(what string, stubs, contents []byte) {
		t.Helper()
		if got, err := sqlstore.DecodeProduced(stubs, contents); err == nil || got != nil {
			t.Errorf("%s: read %+v, %v, want an error", what, got, err)
		}
	}
	for n := 1; n < len(stubs); n++ {
		refused("cut stubs", stubs[:n], contents)
		refused("cut stubs without contents", stubs[:n], nil)
	}
	for n := range contents {
		refused("cut contents", stubs, contents[:n])
	}
	changed := func(b []byte, at int, to byte) []byte {
		b = append([]byte{}, b...)
		b[at] = to
		return b
	}
	refused("another encoding", changed(stubs, 0, 2), contents)
	refused("contents of another encoding", stubs, changed(contents, 0, 2))
	refused("contents of fewer", stubs, sqlstore.EncodeContents(produced[:2]))
	refused("contents of none", stubs, sqlstore.EncodeContents(nil))
	refused("no contents of none", []byte{1, 0}, []byte{})
	refused("contents of more", sqlstore.EncodeStubs(produced[:2]), contents)
	refused("more than stubs", append(append([]byte{}, stubs...), 0), contents)
	refused("more than contents", stubs, append(append([]byte{}, contents...), 0))
	refused("contents alone", nil, contents)
	refused("a number that never ends", []byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, nil)
}
