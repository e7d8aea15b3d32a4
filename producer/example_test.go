package producer_test

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/producer"
)

func ExampleStamp() {
	m := producer.Message{ID: producer.DeriveID("shop/orders", "4711", "created"), Topic: "orders.created"}
	if err := producer.Stamp(context.Background(), &m); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Header[producer.HeaderID] == m.ID)
	// Output: true
}

func ExampleDeriveID() {
	fmt.Println(producer.DeriveID("orders", "4711"))
	// Output: ab4edd01-2d39-858d-9fb3-3f3add5c119f
}

func ExampleNewID() {
	first, second := producer.NewID(), producer.NewID()
	fmt.Println(first < second) // ordered by time
	// Output: true
}

func ExampleExtract() {
	found, err := producer.Extract(producer.Incoming{
		Header: producer.Header{"ce_id": "A-1", "ce_source": "/shop/orders"},
		Topic:  "orders",
	})
	fmt.Println(found.ID, found.Source, err)
	// Output: ~ce,/shop/orders,A-1 ce_id <nil>
}

func ExampleExtractHeader() {
	extractors := append(producer.DefaultExtractors(), producer.ExtractHeader("webhook-id"))
	found, err := producer.Extract(producer.Incoming{Header: producer.Header{"Webhook-Id": "msg_2"}, Topic: "hooks"}, extractors...)
	fmt.Println(found.ID, found.Source, err)
	// Output: ~hdr,webhook-id,hooks,msg_2 header <nil>
}

func ExampleFingerprintJSON() {
	fingerprint, err := producer.FingerprintJSON(producer.JSONFields{Keep: []string{"/order", "/amount"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	first, _ := fingerprint([]byte(`{"order": 4711, "amount": 10, "sent_at": "10:00"}`))
	again, _ := fingerprint([]byte(`{"amount": 10.0, "order": 4711, "sent_at": "10:05"}`))
	other, _ := fingerprint([]byte(`{"order": 4711, "amount": 20, "sent_at": "10:10"}`))
	fmt.Println(first.Differs(again), first.Differs(other))
	// Output: false true
}
