package webhook

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// minStandardKey is the shortest key that Standard Webhooks allows, in bytes.
const minStandardKey = 24

// StandardWebhooks verifies requests by the specification Standard Webhooks with symmetric signatures (v1). The headers
// are webhook-id, webhook-timestamp and webhook-signature; one of the signatures must be that of one of the keys. A
// secret is the base64 of at least 24 bytes, with or without "whsec_" before it; several are for rotation. The event's
// ID is webhook-id. It must not hold a full stop, because ID, time and body are signed with full stops between them.
//
// Signatures of other versions are skipped. Asymmetric ones (v1a) are not supported.
func StandardWebhooks(secret string, others ...string) (Verifier, error) {
	var ks keys
	for i, s := range append([]string{secret}, others...) {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
		if err != nil {
			return nil, fmt.Errorf("webhook: secret %d is not base64, use it as the sender shows it: \"whsec_\" "+
				"and base64", i+1)
		}
		if len(key) < minStandardKey {
			return nil, fmt.Errorf("webhook: secret %d has %d bytes, want at least %d", i+1, len(key), minStandardKey)
		}
		ks = append(ks, key)
	}
	return scheme{ks, verifyStandard}, nil
}

func verifyStandard(ks keys, h http.Header, body []byte) (Event, error) {
	id, err := one(h, "webhook-id")
	if err != nil {
		return Event{}, err
	}
	timestamp, err := one(h, "webhook-timestamp")
	if err != nil {
		return Event{}, err
	}
	header, err := one(h, "webhook-signature")
	if err != nil {
		return Event{}, err
	}
	if strings.Contains(id, ".") {
		return Event{}, &SignatureError{"webhook-id holds a full stop, so that it is not clear what was signed"}
	}
	sent, err := seconds(timestamp)
	if err != nil {
		return Event{}, err
	}
	if !ks.signed(standardSignatures(header), []byte(id), []byte("."), []byte(timestamp), []byte("."), body) {
		return Event{}, errMismatch
	}
	return Event{ID: id, Sent: sent}, nil
}

// standardSignatures reads v1,… v1,…: those of this version.
func standardSignatures(header string) (signatures [][]byte) {
	for s := range strings.FieldsSeq(header) {
		if text, ok := strings.CutPrefix(s, "v1,"); ok {
			if sum, err := base64.StdEncoding.Strict().DecodeString(text); err == nil {
				signatures = append(signatures, sum)
			}
		}
	}
	return signatures
}
