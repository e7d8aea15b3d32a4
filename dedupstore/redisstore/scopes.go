package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

var noteScopesScript = redis.NewScript(source("note_scopes"))

// scopes keep what is known of a group in one string, beside the records.
func (s *Store) scopes() recordstore.Scopes {
	return recordstore.Scopes{Package: "redisstore", Read: s.readScopes, Write: s.writeScopes}
}

// NoteScopes implements [dedupstore.ScopeKeeper]. It needs no right that claims do not need.
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	return s.scopes().NoteScopes(ctx, uses)
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s *Store) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	return s.scopes().Scopes(ctx, tenant, group)
}

// scopesName is where the scopes of a group are. No record's name is like it: "?" is escaped in those.
func (s *Store) scopesName(tenant, group string) string {
	return s.config.Prefix + ":" + dedupstore.Scope{Tenant: tenant, Group: group}.String() + "?scopes"
}

func (s *Store) readScopes(ctx context.Context, tenant, group string) (v recordstore.ScopesValue, err error) {
	cmd := redis.NewStringCmd(ctx, "get", s.scopesName(tenant, group))
	if !s.within(ctx, func() { _ = s.rdb.Process(ctx, cmd) }) {
		return v, context.Cause(ctx)
	}
	data, err := cmd.Bytes()
	if errors.Is(err, redis.Nil) {
		return v, nil
	}
	return recordstore.ScopesValue{Data: data}, err
}

func (s *Store) writeScopes(
	ctx context.Context, tenant, group string, data []byte, seen recordstore.ScopesValue,
) error {
	type answer struct {
		written int
		err     error
	}
	answered := make(chan answer, 1)
	if !s.within(ctx, func() {
		args := []any{seen.Data, data, milliseconds(dedupstore.ScopeRetention)}
		n, err := noteScopesScript.Run(ctx, s.rdb, []string{s.scopesName(tenant, group)}, args...).Int()
		answered <- answer{n, err}
	}) {
		return context.Cause(ctx)
	}
	a := <-answered
	if a.err == nil && a.written == 0 {
		return recordstore.ErrConflict
	}
	return a.err
}
