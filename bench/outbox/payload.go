package main

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	topic        = "orders" // stream, subject and topic
	payloadBytes = 220
)

var filler = strings.Repeat("x", payloadBytes)

const (
	head = `{"id":"`
	mid  = `","d":"`
	tail = `"}`
)

// payload is the JSON of the message with this number.
func payload(number int) []byte {
	begin := fmt.Sprintf("%s%010d%s", head, number, mid)
	return []byte(begin + filler[:payloadBytes-len(begin)-len(tail)] + tail)
}

// numberOf is the number of the message with this payload, whatever its spaces.
func numberOf(payload []byte) (int, error) {
	_, rest, _ := strings.Cut(string(payload), `"id":`)
	_, rest, _ = strings.Cut(rest, `"`)
	number, _, found := strings.Cut(rest, `"`)
	if !found {
		return 0, fmt.Errorf("a message without its number: %.40q", payload)
	}
	return strconv.Atoi(number)
}
