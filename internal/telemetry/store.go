package telemetry

import (
	"context"
	"errors"
	"reflect"
	"strings"
)

// storeName tells the technology of a store by its package, so that stores need not say.
func storeName(store any) string {
	if store == nil {
		return ""
	}
	t := reflect.TypeOf(store)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if own, ok := strings.CutPrefix(t.PkgPath(), Scope+"/"); ok {
		switch own {
		case "dedupstore":
			return "memory"
		case "dedupstore/redisstore":
			return "redis"
		case "dedupstore/pgstore":
			return "postgresql"
		case "dedupstore/sqlitestore":
			return "sqlite"
		}
	}
	return "other"
}

type storeFailure struct{ operation, policy, kind string }

func (f storeFailure) own() storeFailure { return f } // constants

// Policies of store errors.
const (
	failClosed = "fail_closed"
	failOpen   = "fail_open"
	shadow     = "shadow"
)

// StoreError counts a failed operation of the store. The policy is that of oncemill.Policy.StoreDown, or "shadow".
func (m *Meter) StoreError(ctx context.Context, operation, policy, failure string) {
	if !m.storeErrors.Enabled(ctx) {
		return
	}
	name := failClosed
	switch policy {
	case "open":
		name = failOpen
	case shadow:
		name = shadow
	}
	key := storeFailure{operation, name, failure}
	rest := storeFailure{operation, name, other}
	m.storeErrors.Add(ctx, 1, m.failed.of(key, storeFailure.own, rest, newStoreFailure).add...)
}

func newStoreFailure(f storeFailure) *labels {
	return newLabels(keyOperation.String(f.operation), keyPolicy.String(f.policy), keyErrorType.String(f.kind))
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
		return FailedTimeout.String()
	case errors.Is(err, context.Canceled):
		return FailedCanceled.String()
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return FailedTimeout.String()
	}
	return other
}
