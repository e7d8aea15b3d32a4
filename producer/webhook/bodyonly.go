package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
)

// GitHub verifies requests of GitHub: header X-Hub-Signature-256. The older X-Hub-Signature (SHA-1) is not looked at. A
// secret is the webhook's, as it was typed there; several are for rotation, not for several webhooks. The event's ID is
// X-GitHub-Delivery, which a redelivery keeps. Apps may get one event under one ID with different bodies, so each
// webhook and app needs its own Config.Sender. The message carries X-GitHub-Event, which says what happened.
//
// The signature covers the body alone, neither ID nor headers, and no time.
func GitHub(secret string, others ...string) (Verifier, error) {
	return newScheme(bodyOnly{"X-Hub-Signature-256", "sha256=", hex.DecodeString, "X-GitHub-Delivery",
		[]string{"X-GitHub-Event"}}.verify, secret, others)
}

// Shopify verifies requests of Shopify: header X-Shopify-Hmac-Sha256. A secret is the app's client secret; several are
// for rotation. The event's ID is X-Shopify-Webhook-Id, the delivery's, which a retry keeps (shopify.dev, "Verify
// webhook deliveries"). The message carries X-Shopify-Topic, X-Shopify-Shop-Domain, X-Shopify-Triggered-At and
// X-Shopify-Event-Id. The last one is not a message ID: one action may cause webhooks of several topics or
// subscriptions, which share it.
//
// The signature covers the body alone, neither ID nor headers, and no time.
func Shopify(secret string, others ...string) (Verifier, error) {
	return newScheme(bodyOnly{"X-Shopify-Hmac-Sha256", "", base64.StdEncoding.Strict().DecodeString,
		"X-Shopify-Webhook-Id", []string{"X-Shopify-Topic", "X-Shopify-Shop-Domain", "X-Shopify-Triggered-At",
			"X-Shopify-Event-Id"}}.verify, secret, others)
}

// bodyOnly verifies requests whose signature covers the body alone.
type bodyOnly struct {
	signature string // the header, which begins with prefix
	prefix    string
	decode    func(string) ([]byte, error)
	id        string // the header with the event's ID
	headers   []string
}

func (v bodyOnly) verify(ks keys, h http.Header, body []byte) (Event, error) {
	sum, err := signature(h, v.signature, v.prefix, v.decode)
	if err != nil {
		return Event{}, err
	}
	if !ks.signed([][]byte{sum}, body) {
		return Event{}, errMismatch
	}
	id, err := one(h, v.id)
	if err != nil {
		return Event{}, &eventError{"header " + v.id + ", the ID of the event, is not there, or not once"}
	}
	return Event{ID: id, Headers: v.headers}, nil
}
