package producer

import (
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// IDs of other systems are written as "~kind,namespace,…,id". In the parts, "%", "," and space become %25, %2C and %20,
// so that different parts never make the same ID. Our own IDs never begin with "~". A foreign ID longer than
// dedupstore.MaxID becomes "~kind,UUID", with a UUID derived from its parts.
const foreignPrefix = "~"

// foreignParts is how many parts each kind of foreign ID has. At least two: one alone is the derived form.
var foreignParts = map[string]int{
	"ce":   2, // CloudEvents: source, id
	"nats": 2, // origin, Nats-Msg-Id
	"idem": 2, // origin, Idempotency-Key
	"dbz":  2, // origin, Debezium's id
	"pos":  2, // origin, position
	"hdr":  3, // header name, origin, value
	"ext":  2, // namespace, id
}

// ForeignID returns the message ID for an ID of another system. Use it in your own extractors. It is unique by
// namespace and ID together, and never equal to an ID of NewID, DeriveID, or another kind of foreign ID. If it would be
// longer than dedupstore.MaxID bytes, it is a hash of the two.
func ForeignID(namespace, id string) string { return foreignID("ext", namespace, id) }

var foreignEscaper = strings.NewReplacer("%", "%25", ",", "%2C", " ", "%20")

func foreignID(kind string, parts ...string) string {
	id := foreignPrefix + kind
	for _, p := range parts {
		id += "," + foreignEscaper.Replace(p)
	}
	if len(id) > dedupstore.MaxID {
		return foreignPrefix + kind + "," + ids.Derive("oncemill/foreign/"+kind, parts...)
	}
	return id
}

// isForeign reports whether foreignID could have made an ID.
func isForeign(id string) bool {
	parts := strings.Split(strings.TrimPrefix(id, foreignPrefix), ",")
	want, known := foreignParts[parts[0]]
	parts = parts[1:]
	switch {
	case !known:
		return false
	case len(parts) == 1:
		return ids.IsUUID(parts[0])
	case len(parts) != want:
		return false
	}
	unescaper := strings.NewReplacer("%25", "%", "%2C", ",", "%20", " ")
	for _, p := range parts {
		if foreignEscaper.Replace(unescaper.Replace(p)) != p {
			return false
		}
	}
	return true
}
