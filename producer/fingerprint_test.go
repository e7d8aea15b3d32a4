package producer_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

type fields = producer.JSONFields

func fingerprinter(t testing.TB, f fields) producer.Fingerprinter {
	t.Helper()
	fp, err := producer.FingerprintJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	return fp
}

func sum(t testing.TB, fp producer.Fingerprinter, payload string) dedupstore.Fingerprint {
	t.Helper()
	f, err := fp([]byte(payload))
	if err != nil {
		t.Fatalf("%.200s: %v", payload, err)
	}
	return f
}

// Fingerprints are stored: these values must never change.
func TestFingerprint_NeverChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		fp      producer.Fingerprinter
		payload string
		want    dedupstore.Fingerprint
	}{
		{producer.FingerprintPayload, "", dedupstore.Fingerprint{Scheme: "sha256", Sum: "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"}},
		{fingerprinter(t, fields{}), ` { "b" : 1.0, "a" : [ true ] } `, dedupstore.Fingerprint{Scheme: "json-sha256", Sum: "cIdHU4uoH9YLWqyMZGNw3l4kq_cKsYcvZ0WKWk868F0"}},
		{fingerprinter(t, fields{Keep: []string{"/b"}, Strip: []string{"/b/c", "/a"}}), `{"b":1,"a":2}`, dedupstore.Fingerprint{Scheme: "json-sha256.e4e5b034-fa08-8528-8c44-5ec50a94a910", Sum: "647TzLUCMJO1b0kKRlAeiNCXNmh-YJ_bwccbPfi5zNM"}},
	} {
		if got := sum(t, tc.fp, tc.payload); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.payload, got, tc.want)
		}
	}
}

func TestFingerprintJSON_ComparesContentNotSpelling(t *testing.T) {
	t.Parallel()
	all := fields{}
	for _, tc := range []struct {
		name   string
		fields fields
		a, b   string
		same   bool
	}{
		{"order and space", all, `{"a":1,"b":[1,2]}`, "{ \"b\" : [1, 2],\n\"a\" : 1 }", true},
		{"numbers and escapes", all, `{"a":1.0,"b":"é<"}`, `{"a":1e0,"b":"\u00e9\u003c"}`, true},
		{"order of elements", all, `[1,2]`, `[2,1]`, false},
		{"absent and null", all, `{"a":null}`, `{}`, false},
		{"text and number", all, `{"a":"1"}`, `{"a":1}`, false},
		{"large exact integers", all, `9007199254740992`, `9007199254740994`, false},
		{"spellings of a large integer", all, `[9007199254740994,-123450000000000000000000]`, `[90071992547409940.0e-1,-1.2345E+23]`, true},
		{"zeros", all, `[0,0,0]`, `[-0.0,0e999999999999999999999,0.000e-400]`, true},
		{"numbers at the ends of a double", all, `[1.7976931348623157e308,5e-324]`, `[179769313486231570000e288,0.5e-323]`, true},

		{"other field", fields{Keep: []string{"/a"}}, `{"a":1,"b":1}`, `{"a":1,"b":2,"c":3}`, true},
		{"kept field", fields{Keep: []string{"/a"}}, `{"a":1}`, `{"a":2}`, false},
		{"kept null", fields{Keep: []string{"/a", "/b"}}, `{"a":1,"b":null}`, `{"a":1}`, false},
		{"nested", fields{Keep: []string{"/o/x", "/o/y/z"}}, `{"o":{"x":1,"y":{"z":2,"q":1}}}`, `{"o":{"x":1,"y":{"z":2,"q":7},"w":1},"v":1}`, true},
		{"nested, differs", fields{Keep: []string{"/o/x", "/o/y/z"}}, `{"o":{"x":1,"y":{"z":2}}}`, `{"o":{"x":1,"y":{"z":3}}}`, false},
		{"all of a kept field", fields{Keep: []string{"/o", "/o/x"}}, `{"o":{"x":1,"y":2}}`, `{"o":{"x":1,"y":3}}`, false},
		{"elements", fields{Keep: []string{"/items/price"}}, `{"items":[{"price":1,"t":1},{"t":1}]}`, `{"items":[{"price":1,"t":2},{}]}`, true},
		{"place of an element", fields{Keep: []string{"/items/price"}}, `{"items":[{"price":1},{}]}`, `{"items":[{},{"price":1}]}`, false},
		{"names with slash and tilde", fields{Keep: []string{"/a~1b~0"}}, `{"a/b~":1,"c":1}`, `{"a/b~":1,"c":2}`, true},
		{"the empty name", fields{Keep: []string{"/"}}, `{"":1,"c":1}`, `{"":2,"c":1}`, false},

		{"stripped", fields{Strip: []string{"/at", "/items/at"}}, `{"at":1,"items":[{"at":1,"p":1}]}`, `{"at":2,"items":[{"at":3,"p":1}]}`, true},
		{"stripped, rest differs", fields{Strip: []string{"/at"}}, `{"at":1,"p":1}`, `{"at":1,"p":2}`, false},
		{"stripped big number", fields{Strip: []string{"/n"}}, `{"n":9007199254740993}`, `{}`, true},
		{"stripped within kept", fields{Keep: []string{"/o"}, Strip: []string{"/o/at"}}, `{"o":{"at":1,"p":1}}`, `{"o":{"p":1},"x":1}`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fp := fingerprinter(t, tc.fields)
			a, b := sum(t, fp, tc.a), sum(t, fp, tc.b)
			if (a == b) != tc.same {
				t.Errorf("%s and %s: same is %v, want %v", tc.a, tc.b, a == b, tc.same)
			}
		})
	}
}

func TestFingerprintJSON_BadPayloadIsRefusedWithoutQuotingIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		fields  fields
		payload string
		want    string
	}{
		{"empty", fields{}, "", "not JSON at byte 0"},
		{"cut off", fields{}, `{"secret":"hunter2"`, "not JSON"},
		{"two documents", fields{}, `{} {}`, "not JSON"},
		{"trailing comma", fields{}, `[1,]`, "not JSON"},
		{"not a name", fields{}, `{1:2}`, "not JSON"},
		{"not UTF-8", fields{}, "\"\xff\"", "not UTF-8"},
		{"half a pair", fields{}, `"\ud800"`, "surrogate"},
		{"member twice", fields{}, `{"a":{"amount":1,"amount":2}}`, "a member twice"},
		{"member twice, spelled differently", fields{Strip: []string{"/a"}}, `{"a":1,"\u0061":2}`, "a member twice"},
		{"too deep", fields{}, strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), "not JSON"},
		{"far too deep", fields{}, strings.Repeat("[", 1<<20), "not JSON"},
		{"integer between doubles", fields{}, `{"o":[{"id/x":9007199254740993}]}`, `"/o/0/id~1x" is an integer`},
		{"integer between doubles, with a point", fields{}, `9007199254740993.0`, "is an integer"},
		{"integer between doubles, with an exponent", fields{}, `-9007199254740993e0`, "is an integer"},
		{"integer between doubles, in scientific form", fields{}, `0.90071992547409930E+16`, "is an integer"},
		{"integer whose canonical form is another", fields{}, `1152921504606846976`, "is an integer"},
		{"number next to zero", fields{}, `{"a":1e-400}`, "too close to zero"},
		{"number far too close to zero", fields{}, `0.001e-99999999999999999999`, "too close to zero"},
		{"number beyond doubles", fields{}, `1e400`, "double"},
		{"nothing kept", fields{Keep: []string{"/hunter"}}, `{"secret":1}`, `none of the fields ["/hunter"]`},
		{"nothing kept of a scalar", fields{Keep: []string{"/a"}}, `1`, "none of the fields"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := fingerprinter(t, tc.fields)([]byte(tc.payload))
			invalid := wantInvalid(t, err, "payload")
			if !strings.Contains(invalid.Problem, tc.want) || strings.Contains(invalid.Problem, "hunter2") || len(invalid.Problem) > 400 {
				t.Errorf("problem %q, want it to say %q", invalid.Problem, tc.want)
			}
			if !got.IsZero() {
				t.Errorf("got %v beside the error", got)
			}
		})
	}
}

func TestFingerprintJSON_BadFieldIsNamed(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"", "amount", "order.amount", "/a~", "/a~2b"} {
		_, err := producer.FingerprintJSON(fields{Keep: []string{"/ok", field}})
		wantInvalid(t, err, "JSONFields.Keep[1]")
		_, err = producer.FingerprintJSON(fields{Strip: []string{field}})
		wantInvalid(t, err, "JSONFields.Strip[0]")
	}
}

func TestFingerprintJSON_StripNeverEmptiesAKeptField(t *testing.T) {
	t.Parallel()
	for _, strip := range []string{"/o/x", "/o"} {
		_, err := producer.FingerprintJSON(fields{Keep: []string{"/a", "/o/x"}, Strip: []string{"/b", strip}})
		if invalid := wantInvalid(t, err, "JSONFields.Strip[1]"); !strings.Contains(invalid.Problem, "JSONFields.Keep[1]") {
			t.Errorf("problem %q does not name the kept field", invalid.Problem)
		}
	}
	for _, strip := range []string{"/o/x/y", "/o/y", "/o/x~1", "/p"} {
		fingerprinter(t, fields{Keep: []string{"/a", "/o/x"}, Strip: []string{strip}})
	}
}

func TestFingerprintJSON_SchemeFollowsTheFields(t *testing.T) {
	t.Parallel()
	scheme := func(f fields) string { return sum(t, fingerprinter(t, f), `{"a":1,"b":1}`).Scheme }
	seen := map[string]fields{}
	for _, f := range []fields{
		{},
		{Keep: []string{"/a"}}, {Keep: []string{"/b"}}, {Keep: []string{"/a", "/b"}}, {Keep: []string{"/a/b", "/b"}},
		{Strip: []string{"/a"}}, {Keep: []string{"/b"}, Strip: []string{"/a"}}, {Keep: []string{"/a"}, Strip: []string{"/b"}},
	} {
		s := scheme(f)
		if other, ok := seen[s]; ok {
			t.Errorf("%+v and %+v have one scheme, %s", f, other, s)
		}
		seen[s] = f
		if !regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString(s) {
			t.Errorf("stores do not accept the scheme %q", s)
		}
	}
	if scheme(fields{Keep: []string{"/a", "/b"}}) != scheme(fields{Keep: []string{"/b", "/a", "/b"}}) {
		t.Error("the scheme depends on the order of the fields")
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add([]byte(`{"a":[{"b":1.50,"c":"\u00e9"}],"d":null}`), "/a/b", "/d")
	f.Add([]byte(`[1e400,{"a":1,"a":2}]`), "/a", "/~01")
	f.Add([]byte(`"\ud83d\ude00"`), "", "x")
	f.Add([]byte(`123456789012345678901234567890`), "/", "/")
	f.Add([]byte(`[1152921504606846976,1152921504606847000,9007199254740993.0,1e23,-1e-400,0e9]`), "/a", "/b")
	f.Fuzz(func(t *testing.T, payload []byte, keep, strip string) {
		for _, choice := range []fields{{}, {Keep: []string{keep}}, {Strip: []string{strip}}, {Keep: []string{keep}, Strip: []string{strip}}} {
			fp, err := producer.FingerprintJSON(choice)
			var invalid *dedupstore.InvalidError
			if err != nil {
				if !errors.As(err, &invalid) {
					t.Fatalf("%v (%T)", err, err)
				}
				continue
			}
			got, err := fp(payload)
			if err != nil {
				if !errors.As(err, &invalid) || !got.IsZero() {
					t.Fatalf("%v with %v (%T)", got, err, err)
				}
				continue
			}
			if !json.Valid(payload) {
				t.Fatal("a payload that is not JSON has a fingerprint")
			}
			canonical, err := jcs.Transform(payload)
			if err != nil {
				t.Fatalf("the payload has a fingerprint, but no canonical form: %v", err)
			}
			if again, err := fp(canonical); err != nil || again != got {
				t.Fatalf("the canonical form has %v, %v; the payload %v", again, err, got)
			}
		}
	})
}

// A number takes as long as it is: a stranger's message must not stop a consumer.
func TestFingerprintJSON_LongNumbersTakeNoLongerThanOtherText(t *testing.T) {
	t.Parallel()
	f := fingerprinter(t, fields{})
	number, text := []byte("1."+strings.Repeat("123456789", 1<<15)), []byte(`"`+strings.Repeat("123456789", 1<<15)+`"`)
	quickest := func(payload []byte) time.Duration {
		took := time.Hour
		for range 3 {
			began := time.Now()
			sum(t, f, string(payload))
			took = min(took, time.Since(began))
		}
		return took
	}
	if took, other := quickest(number), quickest(text); took > 20*other {
		t.Errorf("a number takes %v, a string of its length %v", took, other)
	}
}
