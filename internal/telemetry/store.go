package telemetry

import (
	"cmp"
	"context"
	"errors"
	"reflect"
)

// storeNames tell the technology of a store by its package, so that stores need not say.
var storeNames = map[string]string{
	Scope + "/dedupstore":                "memory",
	Scope + "/dedupstore/redisstore":     "redis",
	Scope + "/dedupstore/pgstore":        "postgresql",
	Scope + "/dedupstore/sqlitestore":    "sqlite",
	Scope + "/dedupstore/mysqlstore":     "mysql",
	Scope + "/dedupstore/natskv":         "nats",
	Scope + "/dedupstore/dynamostore":    "dynamodb",
	Scope + "/dedupstore/cassandrastore": "cassandra",
}

func storeName(store any) string {
	if store == nil {
		return ""
	}
	t := reflect.TypeOf(store)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return cmp.Or(storeNames[t.PkgPath()], "other")
}

// StoreError counts a failed operation of the store. The policy is that of oncemill.Policy.StoreDown, or "shadow".
func (m *Meter) StoreError(ctx context.Context, operation, policy, failure string) {
	switch policy {
	case "closed":
		policy = "fail_closed"
	case "open":
		policy = "fail_open"
	}
	m.storeErrors.Add(ctx, 1, m.sources.of(scope{}).with(keyOperation.String(operation), keyPolicy.String(policy),
		keyErrorType.String(failure)).add...)
}

// Kinds of a store's errors that do not follow from their types here.
const (
	StoreFull       = "full"
	StoreNotDurable = "not_durable"
	StoreRecord     = "record"
)

// StoreFailure is the error.type of a store's error that is none of those above.
func StoreFailure(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return string(FailedTimeout)
	case errors.Is(err, context.Canceled):
		return string(FailedCanceled)
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return string(FailedTimeout)
	}
	return other
}
