package franz

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestHeader_DifferentValuesOfOneNameAreJoined(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []string
		want   string
	}{
		{[]string{"a"}, "a"}, {[]string{"a", "a", "a"}, "a"}, {[]string{"", ""}, ""}, {[]string{"a", "b"}, "a, b"},
		{[]string{"a", "a", "b"}, "a, b"}, {[]string{"a", "b", "a"}, "a, b, a"}, {[]string{"", "b"}, ", b"},
	} {
		var headers []kgo.RecordHeader
		for _, v := range tc.values {
			headers = append(headers, kgo.RecordHeader{Key: "name", Value: []byte(v)})
		}
		if got := header(append(headers, kgo.RecordHeader{Key: "other"})); got["name"] != tc.want || len(got) != 2 {
			t.Errorf("%q became %q, want %q", tc.values, got, tc.want)
		}
	}
}

// A batch of a megabyte, compressed, holds more headers than this, and their record would come first after each restart.
func TestHeader_ManyOfOneNameAreCopiedOnce(t *testing.T) { // not parallel: it measures the heap
	headers := make([]kgo.RecordHeader, 30_000)
	for i := range headers {
		headers[i] = kgo.RecordHeader{Key: "h", Value: fmt.Appendf(nil, "%08d", i)}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := header(headers)
	runtime.ReadMemStats(&after)
	if n := len(got["h"]); n != 10*len(headers)-2 {
		t.Errorf("the value has %d bytes", n)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 20<<20 {
		t.Errorf("%d KiB of headers took %d MiB of memory", 10*len(headers)>>10, used>>20)
	}
}
