package natsjs

import (
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// BySubject is the Config.Order that makes each subject an order key.
func BySubject(msg jetstream.Msg) string { return msg.Subject() }

// BySubjectToken returns the Config.Order that makes each value of the nth token of the subject an order key. It counts
// from 0: with 1, "orders.c7.created" has the order key "c7". Messages with fewer tokens have no order. It panics if n
// is negative.
func BySubjectToken(n int) func(jetstream.Msg) string {
	if n < 0 {
		panic("natsjs: BySubjectToken of a negative number")
	}
	return func(msg jetstream.Msg) string {
		i := 0
		for token := range strings.SplitSeq(msg.Subject(), ".") {
			if i == n {
				return token
			}
			i++
		}
		return ""
	}
}

// ByHeader returns the Config.Order that makes each value of a header an order key, such as producer.HeaderKey. It
// finds the name in any case, and takes the first of several values. Messages without the header have no order.
func ByHeader(name string) func(jetstream.Msg) string {
	return func(msg jetstream.Msg) string {
		header := msg.Headers()
		if values := header[name]; len(values) > 0 {
			return values[0]
		}
		first := ""
		for other, values := range header { // of several spellings the least, so that the key is always the same
			if len(values) > 0 && strings.EqualFold(other, name) && (first == "" || other < first) {
				first = other
			}
		}
		if first == "" {
			return ""
		}
		return header[first][0]
	}
}
