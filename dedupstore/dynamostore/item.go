package dynamostore

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// The attributes of an item.
const (
	keyAttribute     = "pk"      // string: the name of the record
	numberAttribute  = "rev"     // number: another one after each write
	recordAttribute  = "rec"     // binary: the record
	expiresAttribute = "expires" // number: seconds since 1970, for the table's TTL
)

// maxItem is DynamoDB's limit of an item.
const maxItem = 400 << 10

// escapeScope lets the first three colons of a name part it. With Key.String names could exceed the 2048 bytes of a
// key.
var (
	escapeScope   = strings.NewReplacer("%", "%25", ":", "%3A")
	unescapeScope = strings.NewReplacer("%25", "%", "%3A", ":")
)

// nameOf is tenant:group:handler:ID, with "%" and ":" of the first three as %25 and %3A. The ID stands as it is.
func nameOf(k dedupstore.Key) string { return scopeOf(k.Tenant, k.Group, k.Handler) + k.ID }

// scopeOf is what a name begins with.
func scopeOf(parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(escapeScope.Replace(part))
		b.WriteByte(':')
	}
	return b.String()
}

// keyOf reads a name. It is false for what is no record's.
func keyOf(name string) (dedupstore.Key, bool) {
	parts := strings.SplitN(name, ":", 4)
	if len(parts) != 4 {
		return dedupstore.Key{}, false
	}
	for i, part := range parts[:3] {
		parts[i] = unescapeScope.Replace(part)
	}
	k := dedupstore.Key{Tenant: parts[0], Group: parts[1], Handler: parts[2], ID: parts[3]}
	return k, k.Validate() == nil && nameOf(k) == name
}

func primary(name string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{keyAttribute: &types.AttributeValueMemberS{Value: name}}
}

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func encode(key dedupstore.Key, n int64, record *dedupstore.Stored) map[string]types.AttributeValue {
	item := primary(nameOf(key))
	item[numberAttribute] = number(n)
	item[recordAttribute] = &types.AttributeValueMemberB{Value: recordstore.Encode(record)}
	item[expiresAttribute] = number(record.Expires.Add(time.Second - 1).Unix())
	return item
}

// itemSize is what DynamoDB counts, or a little more.
func itemSize(item map[string]types.AttributeValue) (size int) {
	for name, value := range item {
		size += len(name)
		switch value := value.(type) {
		case *types.AttributeValueMemberS:
			size += len(value.Value)
		case *types.AttributeValueMemberB:
			size += len(value.Value)
		case *types.AttributeValueMemberN:
			size += len(value.Value)/2 + 2
		}
	}
	return size
}

// decode reads an item; none is no record. The error is a [*dedupstore.RecordError].
func decode(name string, item map[string]types.AttributeValue) (r recordstore.Revision, err error) {
	if len(item) == 0 {
		return r, nil
	}
	n, _ := item[numberAttribute].(*types.AttributeValueMemberN)
	rec, _ := item[recordAttribute].(*types.AttributeValueMemberB)
	if n == nil || rec == nil {
		err = errors.New("is no record of this store: it lacks " + numberAttribute + " or " + recordAttribute)
	} else if r.Record, err = recordstore.Decode(rec.Value); err == nil {
		if r.Number, err = strconv.ParseInt(n.Value, 10, 64); r.Number == 0 {
			err = errors.New("has no number in " + numberAttribute)
		}
	}
	if err != nil {
		return recordstore.Revision{}, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return r, nil
}
