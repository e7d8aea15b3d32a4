package storetest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// slack is a store in memory whose Inspector breaks a rule.
type slack struct {
	*dedupstore.Memory
	list   func(*dedupstore.Page)
	filter func(*dedupstore.Filter)
	tally  func(*dedupstore.Tally)
	change func(m *dedupstore.Memory, seen *dedupstore.Record, c *dedupstore.Change) (done bool)
	look   func(*dedupstore.Record)
}

func (s slack) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	if s.filter != nil {
		s.filter(&f)
	}
	page, err := s.Memory.List(ctx, f, after)
	if s.list != nil {
		s.list(&page)
	}
	return page, err
}

func (s slack) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	c, err := s.Memory.Count(ctx, f, after)
	for i := range c.Tallies {
		if s.tally != nil {
			s.tally(&c.Tallies[i])
		}
	}
	return c, err
}

func (s slack) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	records, err := s.Memory.Look(ctx, keys)
	for i := range records {
		if s.look != nil {
			s.look(&records[i])
		}
	}
	return records, err
}

func (s slack) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	if s.change != nil && s.change(s.Memory, &seen, &c) {
		return nil
	}
	return s.Memory.Change(ctx, seen, c)
}

// anew makes the store take what there is for what was seen.
func anew(m *dedupstore.Memory, seen *dedupstore.Record, _ *dedupstore.Change) bool {
	if records, err := m.Look(context.Background(), []dedupstore.Key{seen.Key}); err == nil {
		*seen = records[0]
	}
	return false
}

func TestInspect_EachCaseNoticesABrokenRule(t *testing.T) {
	t.Parallel()
	for rule, broken := range map[string]struct {
		name  string
		store slack
	}{
		"states are not compared": {
			"list/by-state-kind-and-reason",
			slack{filter: func(f *dedupstore.Filter) { f.States = nil }},
		},
		"kinds are not compared": {
			"list/by-state-kind-and-reason",
			slack{filter: func(f *dedupstore.Filter) { f.Kinds = nil }},
		},
		"reasons are not read": {
			"list/by-state-kind-and-reason",
			slack{filter: func(f *dedupstore.Filter) { f.Reason = "" }},
		},
		"IDs are not compared": {
			"list/by-scope-id-and-age",
			slack{filter: func(f *dedupstore.Filter) { f.ID = "" }},
		},
		"handlers are one": {
			"list/by-scope-id-and-age",
			slack{filter: func(f *dedupstore.Filter) { f.Handler = "" }},
		},
		"age is not compared": {
			"list/by-scope-id-and-age",
			slack{filter: func(f *dedupstore.Filter) { f.Since = f.Before }},
		},
		"a record is left out": {"list/pages-leave-nobody-out", slack{list: func(p *dedupstore.Page) {
			p.Records = p.Records[min(1, len(p.Records)):]
		}}},
		"duplicates are not counted": {
			"count/by-scope-and-state",
			slack{tally: func(t *dedupstore.Tally) { t.Duplicates = 0 }},
		},
		"kinds are counted together": {
			"count/by-scope-and-state",
			slack{tally: func(t *dedupstore.Tally) { t.Kind = "" }},
		},
		"nothing is forgotten": {"change/forgotten-runs-as-a-first-one", slack{
			change: func(_ *dedupstore.Memory, _ *dedupstore.Record, c *dedupstore.Change) bool {
				return *c == dedupstore.Change(dedupstore.Forget{})
			}}},
		"a change is always made": {"change/refused-while-somebody-holds-it", slack{
			change: func(*dedupstore.Memory, *dedupstore.Record, *dedupstore.Change) bool { return true }}},
		"what was seen is not compared": {"change/refused-if-it-has-changed", slack{change: anew}},
		"attempts go on": {
			"change/rerun-lets-a-failure-run-again",
			slack{look: func(r *dedupstore.Record) { r.Attempts++ }},
		},
		"reruns are not counted": {
			"change/reruns-are-counted",
			slack{look: func(r *dedupstore.Record) { r.Reruns = min(1, r.Reruns) }},
		},
		"completed without a result": {"change/unknown-is-completed", slack{
			change: func(_ *dedupstore.Memory, _ *dedupstore.Record, c *dedupstore.Change) bool {
				if complete, ok := (*c).(dedupstore.Complete); ok {
					complete.Outcome.Result = nil
					*c = complete
				}
				return false
			}}},
		"a reason tells who decided": {
			"change/completed-is-told-from-a-handler's-word",
			slack{look: func(r *dedupstore.Record) {
				r.ByOperator = r.ByOperator || strings.HasPrefix(r.Outcome.Reason, "decided by")
			}},
		},
		"what was produced is dropped": {"change/completed-keeps-its-dead-letter", slack{
			change: func(m *dedupstore.Memory, seen *dedupstore.Record, c *dedupstore.Change) bool {
				rerun := dedupstore.Change(dedupstore.Rerun{})
				if err := m.Change(context.Background(), *seen, rerun); err != nil {
					return false
				}
				a, err := dedupstore.ClaimOne(context.Background(), m, dedupstore.Request{
					Key: seen.Key, Owner: "somebody-else-who-decides", Lease: long, Retention: long, MaxAttempts: 1,
				})
				return err == nil && dedupstore.SettleOne(context.Background(), m, a.Claim, dedupstore.Finish{
					Outcome: (*c).(dedupstore.Complete).Outcome, Retention: long, Published: true,
				}) == nil
			}}},
		"anything is taken": {"change/nonsense-is-refused", slack{
			change: func(*dedupstore.Memory, *dedupstore.Record, *dedupstore.Change) bool { return true }}},
		"a forgotten claim holds": {"change/forgotten-claim-is-lost", slack{
			change: func(*dedupstore.Memory, *dedupstore.Record, *dedupstore.Change) bool { return true }}},
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
