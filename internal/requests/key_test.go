package requests

import (
	"strings"
	"testing"
)

func TestKey_BothSpellingsAreReadAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ value, key string }{ // empty: refused
		{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324"}, // the draft's example
		{`8e03978e-40d5-43e8-bc93-6894a57f9324`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{`KG5LxwFBepaKHyUD`, "KG5LxwFBepaKHyUD"}, // as Stripe's examples send it
		{`"a b, c;d"`, "a b, c;d"},
		{`"a\"b\\c"`, `a"b\c`},
		{`  "k"  `, "k"},
		{`"k";a`, "k"},
		{`"k"; a=1;*c=?1`, "k"},
		{`"k";t=:aGk=:`, "k"},
		{`"k";a="x"`, "k"}, {`"k";a="x;\"\\, y"; b`, "k"}, {`"k";a=1;a=-12.5;b=@1659578233;c=%"f%c3%bc"`, "k"},
		{`"k";a=tok/en:1;b=*`, "k"}, {`"k";*-_.9=?0`, "k"}, {`"k";a=::`, "k"},
		{`"k";a, "l"`, ""}, {`"k";a,l`, ""}, {`"k";`, ""}, {`"k"; `, ""}, {`"k";A`, ""}, {`"k";1`, ""}, {`"k";a=`, ""},
		{`"k";a =1`, ""}, {`"k";a= 1`, ""}, {`"k" ;a`, ""}, {`"k";a;`, ""}, {`"k";;a`, ""}, {"\"k\";\ta", ""},
		{`"k";a="x`, ""}, {`"k";a="\x"`, ""}, {`"k";a="x"y`, ""}, {`"k";a=1.`, ""}, {`"k";a=1.2345`, ""},
		{`"k";a=1234567890123456`, ""}, {`"k";a=--1`, ""}, {`"k";a=?2`, ""}, {`"k";a=:a`, ""}, {`"k";a=:-:`, ""},
		{`"k";a=@1.5`, ""}, {`"k";a=%"%C3"`, ""}, {`"k";a=%"%c"`, ""}, {`"k";a=("x")`, ""}, {"\"k\";a=\"\u00e4\"", ""},
		{`AbC+/=._~-`, "AbC+/=._~-"},
		{`"`, ""}, {`""`, ""}, {``, ""}, {` `, ""},
		{`"a`, ""}, {`"a\`, ""}, {`"a\n"`, ""}, {"\"a\tb\"", ""}, {"\"\u00e4\"", ""}, {"\"a\x7f\"", ""},
		{`"a" "b"`, ""}, {`"a", "b"`, ""}, {`"a"b`, ""}, {`"a" ;b`, ""},
		{`a b`, ""}, {`a,b`, ""}, {`a;b`, ""}, {`a"b`, ""}, {`a\b`, ""}, {"a\x00b", ""}, {"\u00e4", ""},
	} {
		got, problem := parseKey(tc.value)
		if got != tc.key || (problem == "") != (tc.key != "") {
			t.Errorf("%q was read as %q, problem %q; want %q", tc.value, got, problem, tc.key)
		}
	}
}

func TestScopePart_WhatTheEngineKeepsForItselfIsHashed(t *testing.T) {
	t.Parallel()
	for name, fits := range map[string]bool{
		"POST /orders": true, "": false, "~POST /orders": false, "=a": false, "POST /wizard/step=2": false,
	} {
		if got := ScopePart(name); (got == name) != fits || fits == strings.HasPrefix(got, "=") {
			t.Errorf("%q became %q", name, got)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		`"a"`, `a`, `"a\"b"; x=1`, `"`, `";;`, `a,b`, "\x00", `"a";b="c";d`, `"a";b=-1.5; c=:aGk=:;d=?1;e=@1;f=t`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, problem := parseKey(value)
		if problem != "" {
			if key != "" {
				t.Fatalf("%q: key %q beside problem %q", value, key, problem)
			}
			return
		}
		if key == "" || !Printable(key) {
			t.Fatalf("%q was read as %q", value, key)
		}
		again, problem := parseKey(QuoteKey(key))
		if problem != "" || again != key {
			t.Fatalf("%q, quoted as %s, was read as %q, problem %q", key, QuoteKey(key), again, problem)
		}
		if !strings.HasPrefix(strings.Trim(value, " \t"), `"`) {
			return
		}
		for _, more := range []string{`;p`, `; p="q;,\""`, `;p=1`} {
			if got, problem := parseKey(strings.Trim(value, " \t") + more); problem != "" || got != key {
				t.Fatalf("%q with %s was read as %q, problem %q", value, more, got, problem)
			}
		}
		for _, more := range []string{`;`, `,`, ` "l"`, `;p=`, `;p="`, `;P`} {
			if got, problem := parseKey(strings.Trim(value, " \t") + more); problem == "" {
				t.Fatalf("%q with %s was read as %q", value, more, got)
			}
		}
		if got, problem := Key([]string{value}); problem == "" && got != key {
			t.Fatalf("%q: header gives %q, want %q", value, got, key)
		}
	})
}
