package consumer_test

import (
	"errors"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

func TestErrors_Texts(t *testing.T) {
	t.Parallel()
	_, noGroup := consumer.New(newStore(t), consumer.Config{})
	_, noLetter := consumer.Rerun(producer.Message{ID: "m1", Header: producer.Header{}})
	_, unusable := producer.FingerprintJSON(producer.JSONFields{Keep: []string{"amount"}})
	for want, err := range map[string]error{
		"consumer: Config.Group is empty: name what all processes that share this work have in common": noGroup,
		`consumer: message "m1" cannot be run again: header oncemill-purpose is "", want "dead-letter": ` +
			"this is no dead letter": noLetter,
		`consumer: message from "orders" has no ID: have its producer stamp one (header oncemill-id), or name where it ` +
			"is with Config.Extractors": &consumer.MissingIDError{Topic: "orders"},
		`consumer: message "m1" from "orders": unreadable`: &consumer.ContentError{
			Topic: "orders", ID: "m1", Err: errors.New("unreadable"),
		},
		`producer: JSONFields.Keep[0] is "amount": want a JSON Pointer that begins with "/", such as "/order/amount"`: unusable,
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got\n%v\nwant\n%s", err, want)
		}
	}
}
