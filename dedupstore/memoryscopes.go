package dedupstore

import "context"

// NoteScopes implements [ScopeKeeper].
func (m *Memory) NoteScopes(ctx context.Context, uses []ScopeUse) error {
	if err := ValidateScopes(uses); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range uses {
		if known, ok := m.scopes[u.Scope]; ok {
			u = known.Widen(u)
		}
		m.scopes[u.Scope] = u
	}
	return nil
}

// Scopes implements [ScopeKeeper].
func (m *Memory) Scopes(ctx context.Context, tenant, group string) (uses []ScopeUse, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.scopes {
		if tenant+group == "" || u.Tenant == tenant && u.Group == group {
			uses = append(uses, u)
		}
	}
	return uses, nil
}
