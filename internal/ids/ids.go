// Package ids makes identifiers: new ones, derived ones and owner tokens. It decides their form in one place.
package ids

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/google/uuid"
)

// New returns a UUIDv7 (RFC 9562): unique, and ordered by time of creation to the millisecond.
func New() string {
	// NewV7 fails only when the system's random source does, and crypto/rand ends the program then.
	return uuid.Must(uuid.NewV7()).String()
}

// Derive returns a UUIDv8 (RFC 9562) that depends on its arguments only: the first 16 bytes of a SHA-256 over the
// namespace and the parts. Each is preceded by its length, so ("a", "bc") and ("ab", "c") differ.
func Derive(namespace string, parts ...string) string {
	h := sha256.New()
	write := func(s string) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(s)))
		h.Write(size[:])
		h.Write([]byte(s))
	}
	write(namespace)
	for _, p := range parts {
		write(p)
	}
	var id uuid.UUID
	copy(id[:], h.Sum(nil))
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id.String()
}

// Time returns the first 6 bytes of a UUIDv7 in its usual form, which are its time. Of other IDs it returns nothing.
func Time(id string) []byte {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 || u.String() != id {
		return nil
	}
	return u[:6:6]
}

// IsUUID reports whether s is a UUID in the usual form of 36 characters.
func IsUUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// TokenSize is how many characters a Token has.
const TokenSize = 16

// Token returns an owner token: 96 random bits in 16 characters of base64url.
func Token() string { return Tokens(1) }

// Tokens returns so many owner tokens behind each other.
func Tokens(n int) string {
	random := make([]byte, n*TokenSize/4*3)
	rand.Read(random) // never fails: crypto/rand ends the program instead
	return base64.RawURLEncoding.EncodeToString(random)
}
