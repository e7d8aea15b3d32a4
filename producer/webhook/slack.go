package webhook

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
)

// Slack verifies requests of Slack's Events API: headers X-Slack-Signature (v0=…) and X-Slack-Request-Timestamp. A
// secret is the app's signing secret; several are for rotation. The event's ID is the member event_id of the body,
// which a retry keeps. A signed url_verification of a new endpoint is answered with its challenge.
//
// The Events API's app_rate_limited has no event_id. Its ID is "app_rate_limited", app, team and minute, with spaces
// between them. Slash commands and interactions have no ID, and are refused with status 400.
func Slack(secret string, others ...string) (Verifier, error) {
	return newScheme(verifySlack, secret, others)
}

func verifySlack(ks keys, h http.Header, body []byte) (Event, error) {
	timestamp, err := one(h, "X-Slack-Request-Timestamp")
	if err != nil {
		return Event{}, err
	}
	sent, err := seconds(timestamp)
	if err != nil {
		return Event{}, err
	}
	sum, err := signature(h, "X-Slack-Signature", "v0=", hex.DecodeString)
	if err != nil {
		return Event{}, err
	}
	if !ks.signed([][]byte{sum}, []byte("v0:"), []byte(timestamp), []byte(":"), body) {
		return Event{}, errMismatch
	}
	e, err := slackEvent(body)
	e.Sent = sent
	return e, err
}

func slackEvent(body []byte) (Event, error) {
	var e struct {
		Type      string      `json:"type"`
		EventID   string      `json:"event_id"`
		Challenge string      `json:"challenge"`
		Team      string      `json:"team_id"`
		App       string      `json:"api_app_id"`
		Minute    json.Number `json:"minute_rate_limited"`
	}
	err := json.Unmarshal(body, &e)
	switch {
	case err == nil && e.Type == "url_verification" && e.Challenge != "":
		return Event{Reply: []byte(e.Challenge)}, nil
	case err == nil && e.Type == "app_rate_limited" && e.EventID == "" && e.Team != "" && e.Minute != "":
		return Event{ID: strings.Join([]string{e.Type, e.App, e.Team, e.Minute.String()}, " ")}, nil
	case err != nil || e.EventID == "":
		return Event{}, &eventError{"the body has no member event_id: only the Events API has"}
	}
	return Event{ID: e.EventID}, nil
}
