package webhook

import (
	"encoding/hex"
	"net/http"
	"strings"
)

// GitHub verifies requests of GitHub: header X-Hub-Signature-256. The older X-Hub-Signature (SHA-1) is not looked at. A
// secret is the webhook's, as it was typed there; several are for rotation, not for several webhooks. The event's ID is
// X-GitHub-Delivery, which a redelivery keeps. Apps that get the same event may get it under one ID with different bodies, so
// each webhook and app needs a name of its own (Config.Sender). X-GitHub-Event, which says what happened, goes on with the
// message.
//
// The signature covers the body alone, neither ID nor headers, and no time.
func GitHub(secret string, others ...string) (Verifier, error) {
	ks, err := newKeys(secret, others)
	if err != nil {
		return nil, err
	}
	return gitHub{ks}, nil
}

type gitHub struct{ keys keys }

// Verify implements Verifier.
func (v gitHub) Verify(h http.Header, body []byte) (Event, error) {
	header, err := one(h, "X-Hub-Signature-256")
	if err != nil {
		return Event{}, err
	}
	text, ok := strings.CutPrefix(header, "sha256=")
	if !ok {
		return Event{}, &SignatureError{"header X-Hub-Signature-256 does not begin with sha256="}
	}
	sum, err := hex.DecodeString(text)
	if err != nil || !v.keys.signed([][]byte{sum}, body) {
		return Event{}, errMismatch
	}
	id, err := unsignedID(h, "X-GitHub-Delivery")
	return Event{ID: id, Headers: []string{"X-GitHub-Event"}}, err
}

// unsignedID finds an ID that the signature does not cover.
func unsignedID(h http.Header, name string) (string, error) {
	id, err := one(h, name)
	if err != nil {
		return "", &EventError{"header " + name + ", the ID of the event, is not there, or not once"}
	}
	return id, nil
}
