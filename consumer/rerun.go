package consumer

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Rerun turns a dead letter into the message that asks for its rerun. Publish that message synchronously, and only then
// delete or acknowledge the dead letter. Pass the dead letter's Header and Payload as the broker has them, and its Key
// where the broker keeps that apart, as Kafka does. Rerun changes nothing and shares the payload.
//
// The message has the ID, topic, key, header and payload of the one that failed, and names the fence of the failure.
// The consumer's record begins anew: the handler gets its attempts again, under the same key and with the same Run.ID.
// That happens once for each dead letter, however often the message is published or delivered, and not if the message
// has succeeded meanwhile. A rerun that fails ends in a dead letter of its own, which can be run again. The message is
// marked as a replay; otherwise JetStream would take it for a duplicate.
//
// An unknown outcome ("oncemill-outcome: unknown") can be run again like a failure, and its effect may then happen
// TWICE, because nobody knows whether it has happened. Find that out first, for each one. Do not call Rerun for
// everything in the topic. Outside of an inbox the same holds for failures. The last run, or an earlier one, may have
// made its effect before it erred or died. See "Running a dead letter again" in docs/operations.md.
//
// Header oncemill-reruns counts the reruns of a message, and its dead letters carry it. Rerun refuses after ten, so
// that a program that sends every dead letter back comes to an end. To go on, delete that header from the dead letter.
//
// A rerun works only if
//
//   - the failure is still remembered (Policy.FailureWindow). Later a rerun is a first run, even if an earlier one
//     succeeded and that is forgotten too;
//   - the payload is unchanged: another one is a mismatch;
//   - the message reaches the same tenant, group and handler. Where a Router subscribes to a pattern, or to a name that
//     a source gives a meaning, Topic holds that: set it to a subject that leads there;
//   - the consumer finds IDs in the header oncemill-id first, as it does unless Config.Extractors says otherwise. An
//     extractor that finds another ID makes it another message.
//
// Every group that consumes the topic gets the message. Those that have its outcome treat it as any duplicate.
//
// The message's topic, ID, key and header are those of the dead letter. So anybody who may write to the dead-letter
// topic chooses what you publish, with your rights. If you do not trust all of them, look at Topic.
//
// The error names the header and what to do instead. These cannot be run again: a message that is no dead letter, an
// incomplete one, and one that was never recorded. Never recorded means no usable ID, content that cannot be read,
// other content under a known ID, or a run without an ID under MissingIDBypass.
func Rerun(dead producer.Message) (producer.Message, error) {
	m, err := rerun(dead)
	if err != nil {
		id := cmp.Or(dead.Header.Get(producer.HeaderOriginalID), dead.Header.Get(producer.HeaderID), dead.ID)
		return producer.Message{}, fmt.Errorf("consumer: message %.600q cannot be run again: %w", id, err)
	}
	return m, nil
}

// mostReruns is how often a message is run again: more often than an operator tries, and not without end.
const mostReruns = 10

func rerun(dead producer.Message) (producer.Message, error) {
	if err := rerunnable(dead.Header); err != nil {
		return producer.Message{}, err
	}
	before, err := rerunsOf(dead.Header)
	if err != nil {
		return producer.Message{}, err
	}
	header, err := unescape(dead.Header)
	if err != nil {
		return producer.Message{}, err
	}
	fence := dead.Header.Get(producer.HeaderFence)
	m := producer.Message{
		ID:      dead.Header.Get(producer.HeaderOriginalID),
		Topic:   dead.Header.Get(producer.HeaderTopic),
		Key:     cmp.Or(header.Get(producer.HeaderKey), dead.Key),
		Header:  header,
		Payload: dead.Payload,
	}
	maps.DeleteFunc(header, func(name, _ string) bool { return copyHeader(name) || letterHeader(name) })
	header[producer.HeaderID] = m.ID
	header[producer.HeaderRerun] = fence
	header[producer.HeaderPurpose] = producer.PurposeReplay
	header[producer.HeaderGeneration] = fence
	header[producer.HeaderReruns] = strconv.Itoa(before + 1)
	return m, nil
}

// rerunsOf returns how often the message of a dead letter has been run again. It returns an error if it may not be run
// again.
func rerunsOf(dead producer.Header) (int, error) {
	text := dead.Get(producer.HeaderReruns)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 0:
		return 0, fmt.Errorf("header %s is %.80q, want a number", producer.HeaderReruns, text)
	case n >= mostReruns:
		return 0, fmt.Errorf("header %s is %d: it has failed after each rerun, and what sends it back may be a loop; "+
			"to run it again all the same, delete this header", producer.HeaderReruns, n)
	}
	return n, nil
}

// rerunnable returns what keeps a dead letter from being run again, or nil.
func rerunnable(header producer.Header) error {
	wrong := func(name, format string, args ...any) error {
		return fmt.Errorf("header "+name+" "+format, args...)
	}
	if purpose := header.Get(producer.HeaderPurpose); purpose != producer.PurposeDeadLetter {
		return wrong(producer.HeaderPurpose, "is %.80q, want %q: this is no dead letter", purpose,
			producer.PurposeDeadLetter)
	}
	// before the fence, which earlier versions kept of an earlier dead letter
	switch outcome := header.Get(producer.HeaderOutcome); outcome {
	case string(dedupstore.Failed), string(dedupstore.Unknown):
	case outcomeMismatch:
		return wrong(producer.HeaderOutcome,
			"is %q: the ID belongs to other content, and what is recorded is of that; if this is a message of its "+
				"own, publish it with an ID of its own", outcome)
	case outcomeRejected:
		return wrong(producer.HeaderOutcome,
			"is %q: nothing was recorded that could run again; mend what header %s says, and publish it as a new "+
				"message with an ID", outcome, producer.HeaderReason)
	default:
		return wrong(producer.HeaderOutcome, "is %.80q, want %q or %q", outcome, dedupstore.Failed, dedupstore.Unknown)
	}
	switch fence := header.Get(producer.HeaderFence); {
	case fence == "":
		return wrong(producer.HeaderFence,
			"is missing: nothing was recorded that could run again, as of a message without an ID under "+
				"MissingIDBypass; publish it as a new message with an ID")
	case !isFence(fence):
		return wrong(producer.HeaderFence, "is %.80q, want a number above 0", fence)
	case header.Get(producer.HeaderOriginalID) == "":
		return wrong(producer.HeaderOriginalID, "is missing: without the message's ID nobody knows what to run again")
	case header.Get(producer.HeaderTopic) == "":
		return wrong(producer.HeaderTopic, "is missing: set it to where the message came from")
	}
	return nil
}

func isFence(s string) bool {
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && n > 0
}

// unescape returns the header as it was before letter made it portable.
func unescape(dead producer.Header) (producer.Header, error) {
	header := make(producer.Header, len(dead))
	for _, name := range slices.Sorted(maps.Keys(dead)) {
		value := dead[name]
		if n := len(producer.HeaderEscaped); len(name) >= n && strings.EqualFold(name[:n], producer.HeaderEscaped) {
			plain, err := url.QueryUnescape(name[n:])
			if err != nil {
				return nil, fmt.Errorf("header %.80q has a name that is not URL query escaped", name)
			}
			if value, err = url.QueryUnescape(value); err != nil {
				return nil, fmt.Errorf("header %.80q has a value that is not URL query escaped", name)
			}
			name = plain
		}
		header[name] = value
	}
	return header, nil
}

// letterHeader reports whether a header is the dead letter's own, or has a field in a message.
func letterHeader(name string) bool {
	return slices.ContainsFunc(letterHeaders, func(own string) bool { return strings.EqualFold(own, name) })
}

var letterHeaders = []string{
	producer.HeaderID, producer.HeaderOriginalID, producer.HeaderTopic, producer.HeaderHandler, producer.HeaderOutcome,
	producer.HeaderReason, producer.HeaderAttempts, producer.HeaderFence, producer.HeaderKey,
	producer.HeaderReruns,
	"_watermill_message_uuid", // where Watermill's stock marshalers put the dead letter's ID
}
