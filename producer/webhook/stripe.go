package webhook

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Stripe verifies requests of Stripe: header Stripe-Signature (t=…,v1=…), where one of several signatures must be that
// of one of the keys. A secret is the endpoint's, "whsec_…", as the dashboard shows it; several are for rotation. The
// event's ID is the member id of the body, so endpoints that get the same events need different names (Config.Sender).
//
// Two bodies with one ID are the same event if they differ in nothing but pending_webhooks.
func Stripe(secret string, others ...string) (Verifier, error) {
	ks, err := newKeys(secret, others)
	if err != nil {
		return nil, err
	}
	return stripe{ks}, nil
}

type stripe struct{ keys keys }

// Verify implements Verifier.
func (v stripe) Verify(h http.Header, body []byte) (Event, error) {
	header, err := one(h, "Stripe-Signature")
	if err != nil {
		return Event{}, err
	}
	timestamp, signatures, err := stripeSignatures(header)
	if err != nil {
		return Event{}, err
	}
	sent, err := seconds(timestamp)
	if err != nil {
		return Event{}, err
	}
	if !v.keys.signed(signatures, []byte(timestamp), []byte("."), body) {
		return Event{}, errMismatch
	}
	var event struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(body, &event); err != nil || event.ID == "" {
		return Event{}, &eventError{"the body has no member id"}
	}
	content, err := stripeContent(body)
	return Event{ID: event.ID, Sent: sent, Fingerprint: content}, err
}

// stripeContent is of all members of an event but pending_webhooks. It takes numbers as text: as doubles, which
// canonical JSON makes of them, large integers would look like their neighbours. White space does not count.
func stripeContent(body []byte) (dedupstore.Fingerprint, error) {
	var content bytes.Buffer
	dec := json.NewDecoder(bytes.NewReader(body))
	_, err := dec.Token() // {
	for err == nil && dec.More() {
		var name json.Token
		var value json.RawMessage
		if name, err = dec.Token(); err == nil {
			err = dec.Decode(&value)
		}
		if err == nil && name != "pending_webhooks" {
			fmt.Fprintf(&content, "%q:", name)
			err = json.Compact(&content, value)
		}
	}
	if err != nil {
		return dedupstore.Fingerprint{}, &eventError{"the body is no JSON object"}
	}
	f, err := producer.FingerprintPayload(content.Bytes())
	f.Scheme = "stripe-" + f.Scheme
	return f, err
}

// stripeSignatures reads t=…,v1=…: the time as it was signed, and the signatures of this version.
func stripeSignatures(header string) (timestamp string, signatures [][]byte, err error) {
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			if timestamp != "" {
				return "", nil, &SignatureError{"header Stripe-Signature has two timestamps"}
			}
			timestamp = value
		case "v1":
			if sum, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, sum)
			}
		}
	}
	return timestamp, signatures, nil
}
