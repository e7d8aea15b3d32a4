package redisstore

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// FuzzDecode reads any reply of the claim script: nothing panics, and what is granted can be settled.
func FuzzDecode(f *testing.F) {
	const (
		times = "1799999999999999"
		taken = "1R-1799999999999998abcdefghf0123abcdefghijklmnopt0123456789abcdefghijklmnoL0000000030000000"
		kept  = `1Qf1799999999999998abcdefghe1799999999999990h01234567M00000003whyXB00000002okK00000047[{"id":"a","topic":"t","key":{"base64":"/w=="}}]` +
			`C00000031[{"header":[["k","v"]],"payload":"eA=="}]l1799999999999999`
	)
	reply := func(letter, before, after string) string {
		return letter + times + fmt.Sprintf("%08x", len(before)) + before + after
	}
	f.Add("1799999999999999")
	f.Add(reply("r", taken, strings.Replace(taken, "9998", "9999", 1)))
	f.Add(reply("b", taken, ""))
	f.Add(reply("p", kept, ""))
	f.Add(reply("d", strings.Replace(kept, "1Q", "1E", 1), ""))
	f.Add(reply("m", taken, ""))
	f.Add(reply("d", taken[:40], ""))
	f.Fuzz(func(t *testing.T, raw string) {
		r := request("fuzz")
		a, err := decodeAnswer(raw, &r)
		if err != nil {
			if a.Status != "" {
				t.Errorf("an error came with an answer: %+v", a)
			}
			return
		}
		switch a.Status {
		case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
			if err := a.Claim.Validate(); err != nil {
				t.Errorf("the claim cannot be settled: %v", err)
			}
		default:
			if a.Claim != (dedupstore.Claim{}) {
				t.Errorf("%s came with a claim", a.Status)
			}
		}
		if a.Wait < 0 || a.Age < 0 {
			t.Errorf("wait %v, age %v", a.Wait, a.Age)
		}
		if t2, err := decodeSections(string(appendOutcome(nil, &a.Outcome, true))); err != nil {
			t.Errorf("the outcome cannot be read again: %v, %q", err, t2)
		}
	})
}

// FuzzRecord reads any record: nothing panics, and what was read is written again as it was.
func FuzzRecord(f *testing.F) {
	f.Add("1R-1799999999999998abcdefghf0123abcdefghijklmnopw06host:1L0000000030000000")
	f.Add("1R-1799999999999998abcdefghk00001500H0000001cb1799999999999990w06host:1z00000002\xff\x00l0000000030000000")
	f.Add("1Df1799999999999998abcdefgha0000000002n0000000001b1799999999999990e1799999999999991T00000003tttS00000008hgfedcba" +
		"M00000003whyXB00000002okK00000002[]")
	f.Fuzz(func(t *testing.T, raw string) {
		rec, err := decodeRecord(raw)
		if err != nil {
			return
		}
		again, err := decodeRecord(encodeRecord(rec))
		if err != nil || !reflect.DeepEqual(again, rec) {
			t.Errorf("%q became %+v, %v", raw, again, err)
		}
		_, _ = rec.look()
	})
}
