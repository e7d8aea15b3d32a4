package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// CallID returns the ID of a tool call, which is the same whenever it is repeated: a UUIDv8 made of the SHA-256 of the
// conversation, the step in it, the tool's name, and the canonical form (RFC 8785) of its arguments. White space, the
// order of members and the spelling of numbers and strings do not matter, as models and frameworks write them
// differently.
//
// The conversation is what all who might do the same thing have in common: a ticket or a case rather than one chat, if
// several agents work on it. The step tells deliberate repetitions apart: "the second refund of this ticket" is another
// step. It may be empty: then equal calls of the conversation are one call, whenever they are made.
//
// Give it only the arguments that say what is done, such as order and amount. Text that a model writes anew each time
// (a reason, a greeting) makes each try another call. Where the action has an identity of its own, as the refund of an
// order that can be refunded once, DeriveID with that says more, and needs no conversation.
//
// Arguments are anything that encoding/json can write; JSON text is given as json.RawMessage or []byte. It returns an
// *dedupstore.InvalidError without conversation or tool, for a string (is it text or JSON?), for strings in it that are
// not UTF-8, and for arguments that have no canonical form: see FingerprintJSON. Whole numbers beyond 2^53 are sent as
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

// replaced reports whether a string in JSON text has the escape \ufffd, which encoding/json makes of all bytes that are
// not UTF-8, so that different strings would look alike. U+FFFD itself it does not escape.
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

// ofArguments makes an error about a payload one about arguments.
func ofArguments(err error) error {
	if bad, ok := errors.AsType[*dedupstore.InvalidError](err); ok {
		return invalid("args", bad.Problem)
	}
	return err
}
