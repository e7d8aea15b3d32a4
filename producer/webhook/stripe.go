package webhook

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/oncemill/oncemill/producer"
)

// Stripe verifies requests of Stripe: header Stripe-Signature (t=…,v1=…). One of the signatures must be that of one of
// the keys. A secret is the endpoint's, "whsec_…", as the dashboard shows it; several are for rotation. The event's ID
// is the member id of the body, so endpoints that get the same events need different names (Config.Sender).
//
// Two bodies with one ID are the same event if they differ only in pending_webhooks and the order of members. If a
// member is there twice, the last one counts.
func Stripe(secret string, others ...string) (Verifier, error) {
	for _, s := range append([]string{secret}, others...) {
		if kind, _, _ := strings.Cut(s, "_"); kind == "sk" || kind == "rk" || kind == "pk" {
			return nil, fmt.Errorf("webhook: Stripe: a secret begins with %q: that is a key of the API; take the "+
				"signing secret of the endpoint, which begins with \"whsec_\"", kind+"_")
		}
	}
	return newScheme(verifyStripe, secret, others)
}

func verifyStripe(ks keys, h http.Header, body []byte) (Event, error) {
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
	if !ks.signed(signatures, []byte(timestamp), []byte("."), body) {
		return Event{}, errMismatch
	}
	var members map[string]json.RawMessage
	var id string
	if json.Unmarshal(body, &members) != nil || json.Unmarshal(members["id"], &id) != nil || id == "" {
		return Event{}, &eventError{"the body has no member id"}
	}
	// Numbers stay text: canonical JSON makes doubles of them, in which large integers look like their neighbours.
	delete(members, "pending_webhooks")
	rest, err := json.Marshal(members)
	if err != nil {
		return Event{}, err
	}
	content, err := producer.FingerprintPayload(rest)
	content.Scheme = "stripe-" + content.Scheme
	return Event{ID: id, Sent: sent, Fingerprint: content}, err
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
