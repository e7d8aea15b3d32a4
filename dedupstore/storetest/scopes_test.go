package storetest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// vague is a store in memory whose ScopeKeeper breaks a rule.
type vague struct {
	*dedupstore.Memory
	note func(m *dedupstore.Memory, u *dedupstore.ScopeUse) // before each use is noted
	read func(u *dedupstore.ScopeUse)
	any  bool // nothing is validated
	own  bool // a read gets the tenant's groups as one
	part bool // a read of all gets none
}

func (s vague) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	for _, u := range uses {
		if s.note != nil {
			s.note(s.Memory, &u)
		}
		if err := s.Memory.NoteScopes(ctx, []dedupstore.ScopeUse{u}); err != nil && !s.any {
			return err
		}
	}
	return nil
}

func (s vague) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	uses, err := s.Memory.Scopes(ctx, tenant, group)
	if s.part && tenant == "" {
		return nil, err
	}
	for i := range uses {
		if s.read != nil {
			s.read(&uses[i])
		}
	}
	if s.own {
		more, _ := s.Memory.Scopes(ctx, tenant, group+"2")
		uses = append(uses, more...)
	}
	return uses, err
}

func TestScopes_EachCaseNoticesABrokenRule(t *testing.T) {
	t.Parallel()
	for rule, broken := range map[string]struct {
		name  string
		store vague
	}{
		"a use grows": {"scopes/first-and-last-use", vague{
			note: func(m *dedupstore.Memory, u *dedupstore.ScopeUse) {
				if u.Handler == "charge" && u.First.Equal(u.Last) {
					u.First = u.First.Add(-1)
				}
			}}},
		"the first use is the last one": {"scopes/first-and-last-use", vague{
			read: func(u *dedupstore.ScopeUse) { u.First = u.Last }}},
		"the last use is the first one": {"scopes/first-and-last-use", vague{
			read: func(u *dedupstore.ScopeUse) { u.Last = u.First }}},
		"groups are one": {"scopes/of-one-group", vague{own: true}},
		"all are none":   {"scopes/of-all-groups", vague{part: true}},
		"names are cut": {"scopes/of-any-names", vague{
			note: func(_ *dedupstore.Memory, u *dedupstore.ScopeUse) {
				u.Handler = u.Handler[:min(len(u.Handler), 2)]
			}}},
		"a note undoes another": {"scopes/noted-by-many-at-once", vague{
			note: func(_ *dedupstore.Memory, u *dedupstore.ScopeUse) {
				if u.Handler == "charge" {
					u.Last = u.First.Add(1)
				}
			}}},
		"a note is a record": {"scopes/are-no-records", vague{
			note: func(m *dedupstore.Memory, u *dedupstore.ScopeUse) {
				_, _ = dedupstore.ClaimOne(context.Background(), m, dedupstore.Request{
					Key:   dedupstore.Key{Tenant: u.Tenant, Group: u.Group, Handler: u.Handler, ID: "scopes"},
					Owner: "the-store-itself-that-notes", Lease: long, Retention: long, MaxAttempts: 1,
				})
			}}},
		"anything is noted":             {"scopes/nonsense-is-refused", vague{any: true}},
		"what is valid is noted before": {"scopes/nonsense-is-refused", vague{}},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c := named(t, broken.name)
			synctest.Test(t, func(t *testing.T) {
				m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
				if err != nil {
					t.Fatal(err)
				}
				broken.store.Memory = m
				if r := recorder.Record(t, func(tb testing.TB) { c.check(tb, Subject{Store: broken.store}) }); !r.Failed() {
					t.Errorf("%s accepts a store in which %s", broken.name, rule)
				}
			})
		})
	}
}
