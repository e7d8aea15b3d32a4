package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// CallID returns the ID of a tool call, the same for each repeat. It is a UUIDv8, made of the SHA-256 of conversation,
// step, tool name, and the canonical form (RFC 8785) of the arguments. White space, the order of members and the
// spelling of numbers and strings do not matter, because models and frameworks write them differently.
//
// The conversation is what all agents that might do the same thing share: a ticket or a case rather than one chat. The
// step tells deliberate repetitions apart: "the second refund of this ticket" is another step. If it is empty, equal
// calls of the conversation are one call, whenever they are made.
//
// Pass only the arguments that say what is done, such as order and amount. Text that a model writes anew each time (a
// reason, a greeting) makes each try another call. If the action has its own identity, such as an order that can be
// refunded once, use DeriveID with that; it needs no conversation.
//
// Arguments are anything that encoding/json can write; pass JSON text as json.RawMessage or []byte. CallID returns a
// *dedupstore.InvalidError without conversation or tool, for a string (is it text or JSON?) and for strings that are
// not UTF-8. So it does for arguments without a canonical form: see FingerprintJSON. Pass whole numbers beyond 2^53 as
// strings.
func CallID(conversation, step, tool string, args any) (string, error) {
	switch {
	case conversation == "":
		return "", invalid("conversation", "is empty: equal calls of all conversations would be one")
	case tool == "":
		return "", invalid("tool", "is empty")
	}
	canonical, err := canonicalArguments(args)
	if err != nil {
		return "", err
	}
	return ids.Derive("oncemill/call", conversation, step, tool, string(canonical)), nil
}

// canonicalArguments writes arguments in the form of RFC 8785.
func canonicalArguments(args any) ([]byte, error) {
	text, isText := args.([]byte)
	if raw, is := args.(json.RawMessage); is {
		text, isText = raw, true
	}
	if _, is := args.(string); is {
		return nil, invalid("args",
			"is a string: make it a json.RawMessage if it is JSON, or a member of an object")
	}
	if !isText {
		var err error
		if text, err = json.Marshal(args); err != nil {
			return nil, invalid("args", "cannot be written as JSON")
		}
		if replaced(text) {
			return nil, invalid("args",
				`holds a string that is not UTF-8, or JSON text with \ufffd, which stands for one`)
		}
	}
	doc, err := parseJSON(text)
	if err != nil {
		return nil, ofArguments(err)
	}
	if place, problem := badNumber(doc); problem != "" {
		return nil, invalid("args", fmt.Sprintf("at %.200q %s", place, problem))
	}
	canonical, err := canonicalJSON(doc)
	return canonical, ofArguments(err)
}

// replaced reports whether a string in JSON text has the escape \ufffd. encoding/json writes it for bytes that are not
// UTF-8, so different strings would look alike. It does not escape U+FFFD itself.
func replaced(text []byte) bool {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return false
		}
		if text = text[i+1:]; bytes.HasPrefix(text, []byte("ufffd")) {
			return true
		}
		text = text[1:] // of an escaped backslash, too
	}
}

// ofArguments turns an error about a payload into one about arguments.
func ofArguments(err error) error {
	if bad, ok := errors.AsType[*dedupstore.InvalidError](err); ok {
		return invalid("args", bad.Problem)
	}
	return err
}
