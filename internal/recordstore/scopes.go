package recordstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// Scopes is a [dedupstore.ScopeKeeper]. All handlers of a tenant's group are one value, so that a worker reads them at
// once. It is written on the condition that it is still the one that was read.
type Scopes struct {
	Package string // for errors

	// Read returns the value of a group, with all writes that were confirmed before; the zero value: there is none.
	Read func(ctx context.Context, tenant, group string) (ScopesValue, error)

	// Write writes it for [dedupstore.ScopeRetention], or returns [ErrConflict].
	Write func(ctx context.Context, tenant, group string, data []byte, seen ScopesValue) error
}

// A ScopesValue is what a store keeps of a group.
type ScopesValue struct {
	Data   []byte
	Number int64 // of the revision, where the server or the store counts them
}

// mostHandlers bounds the value of a group, to some 200 KB.
const mostHandlers = 1000

// A span is when a handler was used, in µs since 1970.
type span struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s Scopes) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	if err := dedupstore.ValidateScopes(uses); err != nil {
		return err
	}
	groups := map[dedupstore.Scope][]dedupstore.ScopeUse{}
	for _, u := range uses {
		of := dedupstore.Scope{Tenant: u.Tenant, Group: u.Group}
		groups[of] = append(groups[of], u)
	}
	var known []dedupstore.ScopeUse
	for of, uses := range groups {
		if err := s.note(ctx, of.Tenant, of.Group, uses); err != nil {
			return fmt.Errorf("%s: note scopes: %w", s.Package, err)
		}
		group := uses[0]
		for _, u := range uses {
			group = group.Widen(u)
		}
		group.Handler = of.String()
		known = append(known, group)
	}
	if len(known) == 0 {
		return nil
	}
	if err := s.note(ctx, directory, directory, known); err != nil {
		return fmt.Errorf("%s: note groups: %w", s.Package, err)
	}
	return nil
}

// directory is the tenant and the group whose handlers are the groups that were noted. No other has such a name.
const directory = "\x01"

func (s Scopes) note(ctx context.Context, tenant, group string, uses []dedupstore.ScopeUse) error {
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 100 * time.Millisecond}
	for {
		seen, err := s.Read(ctx, tenant, group)
		if err != nil {
			return err
		}
		next, err := widened(seen.Data, uses)
		if err != nil || next == nil {
			return err
		}
		if err = s.Write(ctx, tenant, group, next, seen); !errors.Is(err, ErrConflict) {
			return err
		}
		if !pace.Sleep(ctx, pace.Jitter(pauses.Next())) {
			return context.Cause(ctx)
		}
	}
}

// widened is a value with further uses, and without what may be forgotten; nil: it is the same.
func widened(data []byte, uses []dedupstore.ScopeUse) ([]byte, error) {
	spans, err := decodeSpans(data)
	if err != nil {
		return nil, err
	}
	changed := false
	for _, u := range uses {
		first, last := u.First.UnixMicro(), u.Last.UnixMicro()
		was, known := spans[u.Handler]
		if !known && len(spans) >= mostHandlers {
			continue
		}
		next := span{first, last}
		if known {
			next = span{min(first, was.First), max(last, was.Last)}
		}
		spans[u.Handler] = next
		changed = changed || next != was
	}
	if !changed {
		return nil, nil
	}
	newest := int64(0)
	for _, at := range spans {
		newest = max(newest, at.Last)
	}
	for handler, at := range spans {
		if newest-at.Last > dedupstore.ScopeRetention.Microseconds() {
			delete(spans, handler)
		}
	}
	return json.Marshal(spans)
}

func decodeSpans(data []byte) (map[string]span, error) {
	spans := map[string]span{}
	if len(data) == 0 {
		return spans, nil
	}
	if err := json.Unmarshal(data, &spans); err != nil {
		return nil, fmt.Errorf("the scopes that were seen cannot be read: %w", err)
	}
	return spans, nil
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s Scopes) Scopes(ctx context.Context, tenant, group string) (uses []dedupstore.ScopeUse, err error) {
	if tenant+group == "" {
		return s.all(ctx)
	}
	seen, err := s.Read(ctx, tenant, group)
	if err != nil {
		return nil, fmt.Errorf("%s: read scopes: %w", s.Package, err)
	}
	spans, err := decodeSpans(seen.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Package, err)
	}
	for handler, at := range spans {
		uses = append(uses, dedupstore.ScopeUse{
			Scope: dedupstore.Scope{Tenant: tenant, Group: group, Handler: handler},
			First: time.UnixMicro(at.First), Last: time.UnixMicro(at.Last),
		})
	}
	return uses, nil
}

// all are the scopes of all groups.
func (s Scopes) all(ctx context.Context) (uses []dedupstore.ScopeUse, err error) {
	groups, err := s.Scopes(ctx, directory, directory)
	if err != nil {
		return nil, err
	}
	for _, of := range groups {
		scope, err := dedupstore.ParseScope(of.Handler + "x")
		if err != nil {
			return nil, fmt.Errorf("%s: read groups: %w", s.Package, err)
		}
		some, err := s.Scopes(ctx, scope.Tenant, scope.Group)
		if err != nil {
			return nil, err
		}
		uses = append(uses, some...)
	}
	return uses, nil
}
