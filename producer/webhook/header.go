package webhook

import (
	"net/http"
	"time"
)

// maxHeader bounds the headers that verifiers read. Real ones have some hundred bytes.
const maxHeader = 4 << 10

// one returns the value of a header that must be there once: of two values it is not clear which one was signed.
func one(h http.Header, name string) (string, error) {
	switch values := h.Values(name); {
	case len(values) == 0 || values[0] == "":
		return "", &SignatureError{"header " + name + " is missing"}
	case len(values) > 1:
		return "", &SignatureError{"header " + name + " is there more than once"}
	case len(values[0]) > maxHeader:
		return "", &SignatureError{"header " + name + " is too long"}
	default:
		return values[0], nil
	}
}

// seconds reads a Unix time, written as senders do: digits only.
func seconds(text string) (time.Time, error) {
	if len(text) == 0 || len(text) > 11 { // some 3,000 years
		return time.Time{}, &SignatureError{"the timestamp is not a Unix time in seconds"}
	}
	var n int64
	for i := range len(text) {
		digit := text[i] - '0'
		if digit > 9 {
			return time.Time{}, &SignatureError{"the timestamp is not a Unix time in seconds"}
		}
		n = 10*n + int64(digit)
	}
	return time.Unix(n, 0), nil
}

var errMismatch = &SignatureError{"no signature is that of a known key over this request"}
