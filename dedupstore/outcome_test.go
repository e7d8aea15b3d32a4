package dedupstore_test

import (
	"reflect"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestStubs_DropHeadersAndPayloadsOnly(t *testing.T) {
	t.Parallel()
	produced := []dedupstore.Produced{
		{ID: "1", Topic: "orders", Key: "k", Header: map[string]string{"a": "b"}, Payload: []byte("x")},
		{ID: "2"},
	}
	want := []dedupstore.Produced{{ID: "1", Topic: "orders", Key: "k"}, {ID: "2"}}
	if got := dedupstore.Stubs(produced); !reflect.DeepEqual(got, want) {
		t.Errorf("stubs %+v, want %+v", got, want)
	}
	if string(produced[0].Payload) != "x" {
		t.Error("the messages themselves were changed")
	}
	for _, nothing := range [][]dedupstore.Produced{nil, {}} {
		if stubs := dedupstore.Stubs(nothing); stubs != nil {
			t.Errorf("nothing became %v", stubs)
		}
	}
}

func TestFingerprint_DiffersOnlyWithinOneScheme(t *testing.T) {
	t.Parallel()
	one, two := dedupstore.Fingerprint{Scheme: "sha256", Sum: "one"},
		dedupstore.Fingerprint{Scheme: "sha256", Sum: "two"}
	other, none := dedupstore.Fingerprint{Scheme: "json", Sum: "three"}, dedupstore.Fingerprint{}
	for _, tc := range []struct {
		a, b dedupstore.Fingerprint
		want bool
	}{{one, two, true}, {one, one, false}, {one, other, false}, {one, none, false}, {none, none, false}} {
		if tc.a.Differs(tc.b) != tc.want || tc.b.Differs(tc.a) != tc.want {
			t.Errorf("%v and %v: want differs to be %t, both ways", tc.a, tc.b, tc.want)
		}
	}
}
