package natskv

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

// scopes keep what is known of a group in one value, beside the records.
func (s *Store) scopes() recordstore.Scopes {
	return recordstore.Scopes{Package: "natskv", Read: s.readScopes, Write: s.writeScopes}
}

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	return s.scopes().NoteScopes(ctx, uses)
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s *Store) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	return s.scopes().Scopes(ctx, tenant, group)
}

// scopesSubject is where the scopes of a group are. It has a token less than the subject of a record.
func (s *Store) scopesSubject(tenant, group string) string {
	b := appendToken([]byte(s.prefix+".scopes."), tenant)
	return string(appendToken(append(b, '.'), group))
}

func (s *Store) readScopes(ctx context.Context, tenant, group string) (v recordstore.ScopesValue, err error) {
	number, header, data, err := s.last(ctx, s.scopesSubject(tenant, group))
	if removed(header) {
		data = nil
	}
	return recordstore.ScopesValue{Data: data, Number: number}, err
}

func (s *Store) writeScopes(
	ctx context.Context, tenant, group string, data []byte, seen recordstore.ScopesValue,
) error {
	seconds := int64(dedupstore.ScopeRetention / time.Second)
	ttl := nats.Header{jetstream.MsgTTLHeader: {strconv.FormatInt(seconds, 10) + "s"}}
	_, err := s.publish(ctx, s.scopesSubject(tenant, group), data, seen.Number, ttl)
	switch {
	case conflict(err):
		return recordstore.ErrConflict
	case err != nil:
		return s.failed(ctx, err)
	}
	return nil
}
