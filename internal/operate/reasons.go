// Package operate is what operators do, for the command and the console: it groups reasons, and reads what may be done.
package operate

import "strings"

// What stands for reasons that have no pattern of their own.
const (
	NoReason     = "no reason given"
	OtherReasons = "other reasons"
)

// Pattern makes one text of reasons that differ in UUIDs, numbers, tokens and quoted parts only, with # for them.
func Pattern(reason string) string {
	if reason == "" {
		return NoReason
	}
	var b strings.Builder
	for at := 0; at < len(reason); {
		end := at + 1
		switch {
		case closing(reason, at) > 0:
			end = closing(reason, at)
			b.WriteByte(reason[at])
			b.WriteString("#")
			b.WriteByte(reason[at])
		case !isWord(reason[at]):
			b.WriteByte(reason[at])
		case isUUID(reason[at:]):
			end = at + uuidSize
			b.WriteByte('#')
		default:
			for end < len(reason) && isWord(reason[end]) {
				end++
			}
			writeWord(&b, reason[at:end])
		}
		at = end
	}
	return b.String()
}

// Piece is the longest text that all reasons of a pattern have.
func Piece(pattern string) (longest string) {
	if pattern == OtherReasons || pattern == NoReason {
		return ""
	}
	for piece := range strings.SplitSeq(pattern, "#") {
		if len(piece) > len(longest) {
			longest = piece
		}
	}
	return longest
}

// writeWord writes a word of letters and digits. Hexadecimal words with a digit, and long ones with some, are tokens.
func writeWord(b *strings.Builder, word string) {
	const longToken, tokenDigits = 16, 3
	digits := 0
	for i := range len(word) {
		if isDigit(word[i]) {
			digits++
		}
	}
	hex := strings.Trim(strings.TrimPrefix(word, "0x"), "0123456789abcdefABCDEF") == ""
	if digits > 0 && (hex || len(word) >= longToken && digits >= tokenDigits) {
		b.WriteByte('#')
		return
	}
	for i := range len(word) {
		switch {
		case !isDigit(word[i]):
			b.WriteByte(word[i])
		case i == 0 || !isDigit(word[i-1]):
			b.WriteByte('#')
		}
	}
}

// closing is behind the quote that closes the one at a place; 0 if there is no quoted part. An apostrophe is no quote.
func closing(s string, at int) int {
	quote := s[at]
	if quote != '"' && quote != '`' && quote != '\'' {
		return 0
	}
	end := strings.IndexByte(s[at+1:], quote) + at + 2
	if end == at+1 || quote == '\'' && (at > 0 && inWord(s[at-1]) || end < len(s) && inWord(s[end])) {
		return 0
	}
	return end
}

const uuidSize = 36

// isUUID reports whether a text begins with a UUID, and its word ends there.
func isUUID(s string) bool {
	if len(s) < uuidSize || len(s) > uuidSize && isWord(s[uuidSize]) {
		return false
	}
	for i := range uuidSize {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && strings.IndexByte("0123456789abcdefABCDEF", s[i]) < 0 {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// inWord is for what may be a letter of another alphabet, too.
func inWord(c byte) bool { return isWord(c) || c >= 0x80 }
