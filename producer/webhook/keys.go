package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"
)

// minKey is how long a key must be, in bytes: as strong as HMAC-SHA256 needs it against guessing (RFC 2104 advises not
// to go below the length of the hash, but senders hand out shorter ones). GitHub's own example has 26.
const minKey = 16

// keys are the secrets that a sender may sign with: more than one while keys are rotated.
type keys [][]byte

// newKeys takes secrets as they are. It refuses short ones: with an empty key anybody can sign. It also refuses what was read from a
// file with its line end: each request would get a 401, of which no operator is told.
func newKeys(secret string, others []string) (keys, error) {
	all := append([]string{secret}, others...)
	ks := make(keys, len(all))
	for i, s := range all {
		if len(s) < minKey {
			return nil, tooShort(i, len(s), minKey)
		}
		if strings.TrimRight(s, "\r\n") != s {
			return nil, &InvalidError{fmt.Sprintf("secret %d", i+1), "ends with a line end, as that of a file: no request would be proven"}
		}
		ks[i] = []byte(s)
	}
	return ks, nil
}

func tooShort(i, have, want int) error {
	return &InvalidError{fmt.Sprintf("secret %d", i+1), fmt.Sprintf("has %d bytes, want at least %d", have, want)}
}

// signed reports whether one of the signatures is that of one of the keys, over the parts one after the other. Each
// comparison takes the same time whatever the two have in common.
func (ks keys) signed(signatures [][]byte, parts ...[]byte) bool {
	found := false
	for _, key := range ks {
		mac := hmac.New(sha256.New, key)
		for _, p := range parts {
			mac.Write(p)
		}
		sum := mac.Sum(nil)
		for _, s := range signatures {
			if hmac.Equal(s, sum) {
				found = true
			}
		}
	}
	return found
}
