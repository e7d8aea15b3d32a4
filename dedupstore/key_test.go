package dedupstore_test

import (
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestKey_StringIsReadable(t *testing.T) {
	t.Parallel()
	for want, k := range map[string]dedupstore.Key{
		"acme:billing:charge:order-7":         {Tenant: "acme", Group: "billing", Handler: "charge", ID: "order-7"},
		"a:b:c:0-9._~@+=,/z":                  {Tenant: "a", Group: "b", Handler: "c", ID: "0-9._~@+=,/z"},
		"a%3Ab:c:d:%25":                       {Tenant: "a:b", Group: "c", Handler: "d", ID: "%"},
		"a:b%3Ac:d:%257B":                     {Tenant: "a", Group: "b:c", Handler: "d", ID: "%7B"},
		"%20:%7Bg%7D:h%2A:%C3%A9%E2%80%A8":    {Tenant: " ", Group: "{g}", Handler: "h*", ID: "é\u2028"},
		"t:g:h:" + strings.Repeat("%3A", 512): {Tenant: "t", Group: "g", Handler: "h", ID: strings.Repeat(":", 512)},
	} {
		if got := k.String(); got != want {
			t.Errorf("%+v became %q, want %q", k, got, want)
		}
		if got, err := dedupstore.ParseKey(want); got != k || err != nil {
			t.Errorf("%q was read as %+v, %v; want %+v", want, got, err, k)
		}
	}
}

func TestParseKey_AcceptsOneSpellingOnly(t *testing.T) {
	t.Parallel()
	for s, field := range map[string]string{
		"": "Key", "a": "Key", "a:b:c": "Key", "a:b:c:d:e": "Key",
		"a:b:c:%": "Key", "a:b:c:%2": "Key", "a:b:c:%3a": "Key", "a:b:c:%41": "Key", "a:b:c:%GG": "Key",
		"a:b:c: ": "Key", "a:b:c:é": "Key", "a:b:c:{d}": "Key", "a:b:c:%2D": "Key",
		":b:c:d": "Key.Tenant", "a::c:d": "Key.Group", "a:b::d": "Key.Handler", "a:b:c:": "Key.ID",
		"a:b:c:%00": "Key.ID", "a:b:%FF:d": "Key.Handler", strings.Repeat("a", 129) + ":b:c:d": "Key.Tenant",
	} {
		_, err := dedupstore.ParseKey(s)
		wantInvalid(t, err, field, "")
	}
}

// Two keys are made from the input; whatever they are, their encodings are equal only if they are, and are read back.
func FuzzKey(f *testing.F) {
	f.Add("acme", "billing", "charge", "order-7", "acme", "billing", "charge", "order-8")
	f.Add("a:b", "c", "d", "e", "a", "b:c", "d", "e")
	f.Add("a", "b", "c:d", "e", "a", "b", "c", "d:e")
	f.Add("a%3Ab", "c", "d", "e", "a:b", "c", "d", "e")
	f.Add("a", "b", "c", "%25", "a", "b", "c", "%")
	f.Add("{a}", "b", "c", "é", "a", "b", "c", "e\u0301")
	f.Add("", "b", "c", "d", "\xff", "b\x00", "c", "\u2028")
	f.Add("a", "b", "c", strings.Repeat("i", 512), "a", "b", "c", strings.Repeat("i", 513))
	f.Fuzz(func(t *testing.T, t1, g1, h1, i1, t2, g2, h2, i2 string) {
		a := dedupstore.Key{Tenant: t1, Group: g1, Handler: h1, ID: i1}
		b := dedupstore.Key{Tenant: t2, Group: g2, Handler: h2, ID: i2}
		if (a == b) != (a.String() == b.String()) {
			t.Errorf("%+v and %+v are encoded as %q and %q", a, b, a.String(), b.String())
		}
		for _, k := range []dedupstore.Key{a, b} {
			s := k.String()
			read, err := dedupstore.ParseKey(s)
			if read != k || (err == nil) != (k.Validate() == nil) {
				t.Errorf("%+v, encoded as %q, was read as %+v, %v", k, s, read, err)
			}
			if err == nil && len(s) > 4<<10 {
				t.Errorf("the encoding of a valid key has %d bytes", len(s))
			}
		}
		for _, s := range []string{i1, t1 + ":" + g1 + ":" + h1 + ":" + i1} { // it has no second spelling
			if k, err := dedupstore.ParseKey(s); err == nil && k.String() != s {
				t.Errorf("%q was read as %+v, which is encoded as %q", s, k, k.String())
			}
		}
	})
}
