package explain

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var update = flag.Bool("update", false, "write the golden texts anew")

// A past makes a history of one message in a store in memory, in virtual time.
type past struct {
	*testing.T
	store  *dedupstore.Memory
	owners int
}

const (
	lease  = 30 * time.Second
	window = 24 * time.Hour
)

var key = dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "order-17"}

func (p *past) request(host string) dedupstore.Request {
	p.owners++
	return dedupstore.Request{
		Key: key, Owner: fmt.Sprintf("owner-%020d", p.owners), Lease: lease, Retention: window, MaxAttempts: 3,
		Holder: host,
	}
}

// claims has a process claim the message.
func (p *past) claims(host string, options ...func(*dedupstore.Request)) dedupstore.Claim {
	p.Helper()
	r := p.request(host)
	for _, option := range options {
		option(&r)
	}
	a, err := dedupstore.ClaimOne(p.Context(), p.store, r)
	if err != nil {
		p.Fatal(err)
	}
	return a.Claim
}

// runs has a process claim the message and begin its handler.
func (p *past) runs(host string) dedupstore.Claim {
	p.Helper()
	c := p.claims(host)
	if err := dedupstore.ExtendOne(p.Context(), p.store, dedupstore.Extension{Claim: c, Lease: lease, Started: true}); err != nil {
		p.Fatal(err)
	}
	return c
}

// ends ends a run after so long.
func (p *past) ends(c dedupstore.Claim, after time.Duration, s dedupstore.Settlement) {
	p.Helper()
	time.Sleep(after) // virtual
	switch end := s.(type) {
	case dedupstore.Finish:
		end.Retention, end.Took = window, after
		s = end
	case dedupstore.Release:
		end.Took = after
		s = end
	}
	if err := dedupstore.SettleOne(p.Context(), p.store, c, s); err != nil {
		p.Fatal(err)
	}
}

func (p *past) look() dedupstore.Record {
	p.Helper()
	records, err := p.store.Look(p.Context(), []dedupstore.Key{key})
	if err != nil {
		p.Fatal(err)
	}
	return records[0]
}

func (p *past) change(c dedupstore.Change) {
	p.Helper()
	if err := p.store.Change(p.Context(), p.look(), c); err != nil {
		p.Fatal(err)
	}
}

func ends(kind dedupstore.Kind, reason string) dedupstore.Finish {
	return dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: kind, Reason: reason}, Published: true}
}

func produces(kind dedupstore.Kind, reason string) dedupstore.Finish {
	letter := dedupstore.Produced{ID: "1", Topic: "dead.billing"}
	return dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: kind, Reason: reason, Produced: []dedupstore.Produced{letter}},
	}
}

func retries(reason string, delay time.Duration) dedupstore.Release {
	return dedupstore.Release{Reason: reason, Delay: delay}
}

const bankDown = "bank: connection refused"

var histories = map[string]func(p *past){
	"never seen": func(*past) {},
	"claimed":    func(p *past) { p.claims("billing-1:417"); time.Sleep(2 * time.Millisecond) },
	"running":    func(p *past) { p.runs("billing-1:417"); time.Sleep(12 * time.Second) },
	"died":       func(p *past) { p.runs("billing-1:417"); time.Sleep(5 * time.Minute) },
	"succeeded": func(p *past) {
		p.ends(p.runs("billing-1:417"), 12*time.Millisecond, ends(dedupstore.Succeeded, ""))
		time.Sleep(3 * time.Minute)
	},
	"charged twice by a crash": func(p *past) {
		p.runs("billing-1:417")
		time.Sleep(40 * time.Second)
		p.ends(p.runs("billing-2:980"), 20*time.Millisecond, ends(dedupstore.Succeeded, ""))
		time.Sleep(time.Hour)
	},
	"failed twice, then fine": func(p *past) {
		p.ends(p.runs("billing-1:417"), 2*time.Second, retries(bankDown, time.Second))
		time.Sleep(2 * time.Second)
		p.ends(p.runs("billing-2:980"), 2*time.Second, retries(bankDown, time.Second))
		time.Sleep(2 * time.Second)
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Succeeded, ""))
	},
	"waits for its next attempt": func(p *past) {
		p.ends(p.runs("billing-1:417"), 2*time.Second, retries(bankDown, 20*time.Second))
		time.Sleep(5 * time.Second)
	},
	"is due": func(p *past) {
		p.ends(p.runs("billing-1:417"), 2*time.Second, retries(bankDown, time.Second))
		time.Sleep(5 * time.Second)
	},
	"interrupted": func(p *past) {
		p.ends(p.runs("billing-1:417"), 2*time.Second, dedupstore.Release{Uncounted: true, Reason: "shutdown"})
	},
	"failed for good": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Failed, "card refused"))
		time.Sleep(time.Minute)
	},
	"exhausted": func(p *past) {
		for range 3 {
			p.ends(p.runs("billing-1:417"), time.Second, retries(bankDown, 0))
		}
		c := p.claims("billing-2:980")
		p.ends(c, 0, dedupstore.Published{Retention: window})
	},
	"dead letter not published": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, produces(dedupstore.Failed, "card refused"))
		time.Sleep(time.Minute)
	},
	"dead letter published": func(p *past) {
		c := p.runs("billing-1:417")
		p.ends(c, time.Second, produces(dedupstore.Failed, "card refused"))
		p.ends(c, time.Second, dedupstore.Published{Retention: window})
	},
	"outputs being published": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, produces(dedupstore.Succeeded, ""))
		time.Sleep(time.Second)
	},
	"unknown": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Unknown, "no answer from the bank"))
	},
	"completed by an operator": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Unknown, "no answer from the bank"))
		time.Sleep(time.Hour)
		p.change(dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}})
	},
	"completed after its process died": func(p *past) {
		p.runs("billing-1:417")
		time.Sleep(40 * time.Second)
		park := p.claims("billing-2:980", func(r *dedupstore.Request) { r.ParkExpired = true })
		p.ends(park, time.Second, dedupstore.Published{Retention: window})
		time.Sleep(time.Hour)
		p.change(dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}})
	},
	"completed after a failed attempt": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, retries(bankDown, 0))
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Unknown, "no answer from the bank"))
		time.Sleep(time.Hour)
		p.change(dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}})
	},
	"completed as a failure": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Unknown, "no answer from the bank"))
		time.Sleep(time.Hour)
		no := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "the bank has no such charge"}
		p.change(dedupstore.Complete{Outcome: no})
	},
	"a handler that speaks as an operator": func(p *past) {
		word := "decided by an operator: refunded by hand, do not retry"
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Failed, word))
	},
	"exhausted by its last run": func(p *past) {
		for range 2 {
			p.ends(p.runs("billing-1:417"), time.Second, retries(bankDown, 0))
		}
		last := ends(dedupstore.Failed, bankDown)
		last.Outcome.Exhausted = true
		p.ends(p.runs("billing-1:417"), time.Second, last)
	},
	"rerun asked for": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Failed, "card refused"))
		time.Sleep(time.Hour)
		p.change(dedupstore.Rerun{})
		time.Sleep(time.Minute)
	},
	"rerun, and fine": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Failed, "card refused"))
		p.change(dedupstore.Rerun{})
		time.Sleep(time.Minute)
		p.ends(p.runs("billing-2:980"), time.Second, ends(dedupstore.Succeeded, ""))
	},
	"fenced zombie": func(p *past) {
		zombie := p.runs("billing-1:417")
		time.Sleep(40 * time.Second)
		p.ends(p.runs("billing-2:980"), time.Second, ends(dedupstore.Succeeded, ""))
		late := dedupstore.Settling{Claim: zombie, Settlement: ends(dedupstore.Failed, "late")}
		late.Settlement = dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: window}
		if errs := p.store.Settle(p.Context(), []dedupstore.Settling{late}); errs[0] == nil {
			p.Fatal("the zombie was not refused")
		}
	},
	"duplicates": func(p *past) {
		p.ends(p.runs("billing-1:417"), time.Second, ends(dedupstore.Succeeded, ""))
		time.Sleep(time.Minute)
		err := p.store.NoteDuplicates(p.Context(), []dedupstore.Duplicates{{Key: key, Count: 3, Last: time.Now()}})
		if err != nil {
			p.Fatal(err)
		}
		time.Sleep(time.Minute)
	},
	"more attempts than are kept": func(p *past) {
		for range 8 {
			c := p.claims("billing-1:417", func(r *dedupstore.Request) { r.MaxAttempts = 100 })
			p.ends(c, time.Second, retries(bankDown, 0))
		}
	},
}

func TestTell_Histories(t *testing.T) {
	t.Parallel()
	for name, make := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
				if err != nil {
					t.Fatal(err)
				}
				p := &past{T: t, store: store}
				make(p)
				r := p.look()
				golden(t, name, reported(Tell(&r, time.Now(), nil)))
			})
		})
	}
}

// told is a story as a text.
func reported(s Story) string {
	var b strings.Builder
	fmt.Fprintln(&b, s.Headline)
	if s.Effects != "" {
		fmt.Fprintln(&b, s.Effects)
	}
	for _, e := range s.Events {
		fmt.Fprintf(&b, "  %s  %s\n", e.At.UTC().Format("15:04:05.000"), e.What)
	}
	fmt.Fprintln(&b, s.Next)
	for _, a := range s.Actions {
		fmt.Fprintf(&b, "  %s: %s\n", a.Verb, a.What)
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: go test -update writes it anew; it is\n%s\nwant\n%s", name, got, want)
	}
}

// An inbox may tell that the first delivery is at work, and no more.
func TestTell_AFirstDeliveryOfAnInbox(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	rec := dedupstore.Record{
		Key: key, State: dedupstore.Running, Started: true, Holder: "a first run", Until: now.Add(time.Second),
	}
	s := Tell(&rec, now, nil)
	if !strings.HasPrefix(s.Headline, "The handler of its first delivery is running.") || len(s.Events) != 0 {
		t.Errorf("%q, %v", s.Headline, s.Events)
	}
}
