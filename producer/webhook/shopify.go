package webhook

import (
	"encoding/base64"
	"net/http"
)

// Shopify verifies requests of Shopify: header X-Shopify-Hmac-Sha256. A secret is the app's client secret; several are for
// rotation. The event's ID is X-Shopify-Webhook-Id, the delivery's, which a retry keeps (shopify.dev, "Verify webhook
// deliveries"). X-Shopify-Topic, X-Shopify-Shop-Domain, X-Shopify-Triggered-At and X-Shopify-Event-Id go on with the message.
// The last one is no ID of a message: webhooks of several topics or subscriptions that one action causes share it.
//
// The signature covers the body alone, neither ID nor headers, and no time.
func Shopify(secret string, others ...string) (Verifier, error) {
	ks, err := newKeys(secret, others)
	if err != nil {
		return nil, err
	}
	return shopify{ks}, nil
}

type shopify struct{ keys keys }

// Verify implements Verifier.
func (v shopify) Verify(h http.Header, body []byte) (Event, error) {
	header, err := one(h, "X-Shopify-Hmac-Sha256")
	if err != nil {
		return Event{}, err
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(header)
	if err != nil || !v.keys.signed([][]byte{sum}, body) {
		return Event{}, errMismatch
	}
	id, err := unsignedID(h, "X-Shopify-Webhook-Id")
	return Event{ID: id, Headers: []string{"X-Shopify-Topic", "X-Shopify-Shop-Domain", "X-Shopify-Triggered-At", "X-Shopify-Event-Id"}}, err
}
