package storetest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// forgetful is a store in memory that loses some of the evidence.
type forgetful struct {
	*dedupstore.Memory
	lose func(*dedupstore.Record)
}

func (f forgetful) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	records, err := f.Memory.Look(ctx, keys)
	for i := range records {
		f.lose(&records[i])
	}
	return records, err
}

func TestEvidence_EachCaseNoticesWhatIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*dedupstore.Record){
		"evidence/who-holds-it":      func(r *dedupstore.Record) { r.Holder = "" },
		"evidence/what-became-of-it": func(r *dedupstore.Record) { r.Ended = r.Claimed },
		"evidence/attempts-with-their-reasons": func(r *dedupstore.Record) {
			r.History = r.History[:min(1, len(r.History))]
		},
		"evidence/is-bounded":                               func(r *dedupstore.Record) { r.History = append(r.History, dedupstore.Attempt{}) },
		"evidence/duplicates-are-counted-beside-the-record": func(r *dedupstore.Record) { r.Duplicates = min(1, r.Duplicates) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for _, c := range evidenceCases {
					if c.name != name {
						continue
					}
					for _, broken := range []bool{false, true} {
						m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
						if err != nil {
							t.Fatal(err)
						}
						var store dedupstore.Store = m
						if broken {
							store = forgetful{m, lose}
						}
						r := recorder.Record(t, func(tb testing.TB) { c.check(tb, Subject{Store: store}) })
						if r.Failed() != broken {
							t.Errorf("broken: %t, failed: %t: %q", broken, r.Failed(), r.Lines())
						}
					}
					return
				}
				t.Error("there is no such case")
			})
		})
	}
}
