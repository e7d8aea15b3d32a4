package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// badNumber finds a number that would look like another one as a double, and where it is.
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
	digits, exponent := decimal(number)
	canonical, canonicalExponent := decimal(strconv.FormatFloat(double, 'e', -1, 64)) // the value that RFC 8785 writes
	switch {
	case digits != "" && double == 0:
		return "is a number too close to zero for an IEEE 754 double"
	case exponent >= 0 && (digits != canonical || exponent != canonicalExponent):
		return "is an integer that becomes another one as an IEEE 754 double, which RFC 8785 makes of it: strip the " +
			"field, or have it sent as a string"
	}
	return ""
}

// decimal returns the value of a JSON number that fits a double as digits × 10^exponent, without its sign and without
// zeros around the digits. The exponent of an integer is never negative, however it is written. Zero has no digits.
// decimal does not compute with the digits: a stranger's number can be as long as a message.
func decimal(number string) (digits string, exponent int) {
	mantissa, power, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(number, "-")), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	significant := strings.TrimRight(whole+fraction, "0")
	digits = strings.TrimLeft(significant, "0")
	if digits == "" {
		return "", 0
	}
	exponent, _ = strconv.Atoi(power) // empty is 0; one beyond int is of a number that has become infinite or zero
	return digits, exponent + len(whole) - len(significant)
}

// canonicalJSON writes a document in the form of RFC 8785.
func canonicalJSON(doc any) ([]byte, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, invalid("payload", "cannot be written as JSON")
	}
	return canonicalize(text)
}
