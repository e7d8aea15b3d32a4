package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseJSON reads a JSON document strictly: UTF-8, no member twice, no half surrogate, nothing after its end. Numbers
// keep their digits. Errors do not quote values.
func parseJSON(payload []byte) (doc any, err error) {
	if !utf8.Valid(payload) {
		return nil, invalid("payload", "is not UTF-8, so it is not JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	if err = dec.Decode(&doc); err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("something follows its end")
		}
	}
	if err != nil {
		return nil, invalid("payload", fmt.Sprintf("is not JSON at byte %d", dec.InputOffset()))
	}
	_, err = canonicalize(payload) // encoding/json takes half a surrogate pair for U+FFFD, and a member twice
	return doc, err
}

// badNumber finds a number that would look like another one after it has become a double, and where it is.
func badNumber(doc any) (place, problem string) {
	switch doc := doc.(type) {
	case map[string]any:
		for name, value := range doc {
			if place, problem := badNumber(value); problem != "" {
				return "/" + pointerEscaper.Replace(name) + place, problem
			}
		}
	case []any:
		for i, value := range doc {
			if place, problem := badNumber(value); problem != "" {
				return "/" + strconv.Itoa(i) + place, problem
			}
		}
	case json.Number:
		return "", numberProblem(string(doc))
	}
	return "", ""
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

func numberProblem(number string) string {
	double, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return "is a number beyond an IEEE 754 double"
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	switch zero := strings.Trim(mantissa, "-.0") == ""; {
	case !zero && double == 0:
		return "is a number too close to zero for an IEEE 754 double"
	case zero, len(mantissa) <= 15: // a double has all of these digits
		return ""
	}
	exact, canonical := new(big.Rat), new(big.Rat)
	exact.SetString(number)
	canonical.SetString(strconv.FormatFloat(double, 'e', -1, 64)) // the value that RFC 8785 writes
	if exact.IsInt() && exact.Cmp(canonical) != 0 {
		return "is an integer that becomes another one as an IEEE 754 double, which RFC 8785 makes of it: strip the " +
			"field, or have it sent as a string"
	}
	return ""
}

// canonicalJSON writes a document in the form of RFC 8785.
func canonicalJSON(doc any) ([]byte, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, invalid("payload", "cannot be written as JSON")
	}
	return canonicalize(text)
}
