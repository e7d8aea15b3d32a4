package dedupstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a key's parts, in bytes. They keep the encoded key below 4 KiB, which every store can index.
const (
	MaxScopePart = 128 // tenant, group, handler
	MaxID        = 512 // message ID
)

// Key says who deduplicates (the scope: tenant, group and handler, always all three) and what (the message ID). Two
// different keys never share a record. The names are data: a renamed group or handler knows nothing of what it did
// under the old name, and runs again.
type Key struct {
	Tenant  string // whose data it is; never empty
	Group   string // the consumer group, such as "billing"; never empty
	Handler string // the handler within the group; never empty
	ID      string // the message ID; never empty
}

// Validate reports the first part that is empty, too long, not UTF-8 or that contains a control character, as an
// [*InvalidError].
func (k Key) Validate() error {
	for _, part := range [...]struct {
		name, value string
		limit       int
	}{
		{"Key.Tenant", k.Tenant, MaxScopePart},
		{"Key.Group", k.Group, MaxScopePart},
		{"Key.Handler", k.Handler, MaxScopePart},
		{"Key.ID", k.ID, MaxID},
	} {
		if problem := textProblem(part.value, part.limit); problem != "" {
			return invalid(part.name, problem)
		}
	}
	return nil
}

func textProblem(s string, limit int) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > limit:
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(s), limit)
	case printable(s):
		return ""
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Sprintf("contains a control character: %q", s)
	}
	return ""
}

// printable reports whether a text is of printable ASCII, as nearly all are.
func printable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// String encodes the key as tenant:group:handler:ID. Stores keep the record under this name. Bytes other than ASCII
// letters, digits and "-._~@+=,/" are written as %XX. So two different keys never have the same name, whatever colons
// or braces are in an ID.
func (k Key) String() string {
	return string(k.Append(make([]byte, 0, len(k.Tenant)+len(k.Group)+len(k.Handler)+len(k.ID)+3)))
}

// Append appends what String returns to b.
func (k Key) Append(b []byte) []byte {
	for i, part := range [...]string{k.Tenant, k.Group, k.Handler, k.ID} {
		if i > 0 {
			b = append(b, ':')
		}
		b = escape(b, part)
	}
	return b
}

// ParseKey reads the text that [Key.String] wrote. It accepts that one spelling only.
func ParseKey(s string) (Key, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 4 {
		return Key{}, invalid("Key", fmt.Sprintf("%q has %d parts, want tenant:group:handler:ID", s, len(parts)))
	}
	for i, part := range parts {
		plain, ok := unescape(part)
		if !ok {
			return Key{}, invalid("Key", fmt.Sprintf("%q is not encoded as Key.String does", s))
		}
		parts[i] = plain
	}
	k := Key{Tenant: parts[0], Group: parts[1], Handler: parts[2], ID: parts[3]}
	return k, k.Validate()
}

const hexDigits = "0123456789ABCDEF"

// plain tells which bytes stand for themselves.
var plain = func() (is [256]bool) {
	for c := range is {
		c := byte(c)
		is[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("-._~@+=,/", c) >= 0
	}
	return is
}()

func isPlain(c byte) bool { return plain[c] }

func escape(b []byte, s string) []byte {
	from := 0 // the beginning of what is copied as it is
	for i := range len(s) {
		if c := s[i]; !isPlain(c) {
			b = append(append(b, s[from:i]...), '%', hexDigits[c>>4], hexDigits[c&15])
			from = i + 1
		}
	}
	return append(b, s[from:]...)
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isPlain(c) {
			b.WriteByte(c)
			continue
		}
		if c != '%' || i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 || isPlain(byte(hi<<4|lo)) {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}
