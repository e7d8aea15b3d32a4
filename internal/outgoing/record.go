package outgoing

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Record is a message as an outbox writes it.
type Record struct {
	producer.Message        // stamped; the payload is not nil
	Copy             string // purpose and generation of a deliberate copy: with ID and topic they name the row
	Text             string // of the header, for Header; empty: the header has nothing but the ID
	Due              int64  // NotBefore in microseconds since 1970; 0: no delay
}

// NewRecord stamps a message and refuses what a database would not give back as it is. The baggage of ctx stays behind:
// rows are kept, and others read them.
func NewRecord(ctx context.Context, m producer.Message) (Record, error) {
	ctx, created := telemetry.Create(ctx, m.Topic, m.Header)
	err := producer.Stamp(baggage.ContextWithoutBaggage(ctx), &m)
	created(m.ID)
	if err != nil {
		return Record{}, err
	}
	telemetry.Forget(m.Header, producer.HeaderResend)          // a handler may have copied it from another message
	telemetry.ForgetOther(m.Header, producer.HeaderKey, m.Key) // likewise; publishers refuse two keys
	if err := validate(m); err != nil {
		return Record{}, err
	}
	if m.Payload == nil {
		m.Payload = []byte{} // nil would be NULL
	}
	r := Record{Message: m}
	if rest := maps.Clone(m.Header); len(rest) > 1 {
		delete(rest, producer.HeaderID)
		text, err := json.Marshal(rest)
		if err != nil {
			return Record{}, err
		}
		r.Text = string(text)
	}
	if purpose, generation := m.Header.Get(producer.HeaderPurpose),
		m.Header.Get(producer.HeaderGeneration); purpose+generation != "" {
		r.Copy = fmt.Sprintf("%q %q", purpose, generation) // quoted: no two pairs look alike
	}
	if !m.NotBefore.IsZero() {
		r.Due = max(1, m.NotBefore.Add(time.Microsecond-1).UnixMicro()) // rounded up: never early
	}
	return r, nil
}

// Times are kept as microseconds since 1970, which those of far years overflow.
var (
	firstTime = time.Unix(0, 0)
	endOfTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// validate comes before any statement: an error of the database may end the caller's transaction.
func validate(m producer.Message) error {
	if m.Topic == "" {
		return &dedupstore.InvalidError{Package: "outbox", Field: "Message.Topic", Problem: "is empty"}
	}
	if at := m.NotBefore; !at.IsZero() && (at.Before(firstTime) || !at.Before(endOfTime)) {
		return &dedupstore.InvalidError{Package: "outbox", Field: "Message.NotBefore",
			Problem: fmt.Sprintf("is in the year %d, want 1970 to 9999", at.UTC().Year())}
	}
	for _, text := range [...]struct{ field, value string }{
		{"Message.ID", m.ID}, {"Message.Topic", m.Topic}, {"Message.Key", m.Key},
	} {
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) {
			return &dedupstore.InvalidError{Package: "outbox", Field: text.field,
				Problem: fmt.Sprintf("is not valid UTF-8 without zero bytes: %.600q", text.value)}
		}
	}
	for name, value := range m.Header {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return &dedupstore.InvalidError{Package: "outbox", Field: fmt.Sprintf("header %q", name),
				Problem: fmt.Sprintf("is not valid UTF-8: %.600q", value)}
		}
	}
	return nil
}
