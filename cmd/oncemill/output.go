package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/oncemill/oncemill/dedupstore"
)

// A table is lines of cells for people. The first has the names of the columns.
type table [][]string

func (a *app) table(t table) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, line := range t {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush()
}

// items writes things for programs, as --output says. Tables are made by the caller.
func items[T any](a *app, all []T) error {
	encoder := json.NewEncoder(a.out)
	if a.settings.output == "json" {
		encoder.SetIndent("", "  ")
		if all == nil {
			all = []T{}
		}
		return encoder.Encode(all)
	}
	for _, one := range all {
		if err := encoder.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) forPeople() bool { return a.settings.output == "table" }

// safe makes a text of others fit for a terminal: without control characters, and short.
func safe(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return '�'
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// terminal reports whether a stream is one.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// A view is a record for programs.
type view struct {
	Tenant     string                `json:"tenant"`
	Group      string                `json:"group"`
	Handler    string                `json:"handler"`
	ID         string                `json:"id"`
	State      dedupstore.State      `json:"state"`
	Kind       dedupstore.Kind       `json:"kind,omitempty"`
	Exhausted  bool                  `json:"exhausted,omitempty"`
	Reason     string                `json:"reason,omitempty"`
	Started    bool                  `json:"started,omitempty"`
	Fence      uint64                `json:"fence,omitempty"`
	Decided    uint64                `json:"decided,omitempty"`
	ByOperator bool                  `json:"by_operator,omitempty"`
	Attempts   int                   `json:"attempts"`
	Reruns     int                   `json:"reruns,omitempty"`
	Holder     string                `json:"holder,omitempty"`
	Trace      string                `json:"trace,omitempty"`
	First      time.Time             `json:"first,omitzero"`
	Claimed    time.Time             `json:"claimed,omitzero"`
	Ended      time.Time             `json:"ended,omitzero"`
	Until      time.Time             `json:"until,omitzero"`
	Expires    time.Time             `json:"expires,omitzero"`
	History    []past                `json:"history,omitempty"`
	Produced   []dedupstore.Produced `json:"produced,omitempty"`
	Result     []byte                `json:"result,omitempty"`
	Duplicates int                   `json:"duplicates"`
	Last       time.Time             `json:"last_duplicate,omitzero"`
}

type past struct {
	Claimed time.Time `json:"claimed"`
	Ended   time.Time `json:"ended,omitzero"`
	Holder  string    `json:"holder,omitempty"`
	Reason  string    `json:"reason,omitempty"`
}

// viewOf makes a view. Results are payloads: they are left out unless asked for.
func viewOf(r *dedupstore.Record, payload bool) view {
	v := view{
		Tenant: r.Key.Tenant, Group: r.Key.Group, Handler: r.Key.Handler, ID: r.Key.ID, State: r.State,
		Kind: r.Outcome.Kind, Exhausted: r.Outcome.Exhausted, Reason: r.Outcome.Reason, Started: r.Started,
		Fence: r.Fence, Decided: r.Decided, ByOperator: r.ByOperator, Attempts: r.Attempts,
		Reruns: r.Reruns, Holder: r.Holder, Trace: r.Trace,
		First: r.First, Claimed: r.Claimed, Ended: r.Ended, Until: r.Until, Expires: r.Expires,
		Produced: r.Outcome.Produced, Duplicates: r.Duplicates, Last: r.LastDuplicate,
	}
	for _, p := range r.History {
		v.History = append(v.History, past(p))
	}
	if payload {
		v.Result = r.Outcome.Result
	}
	return v
}

// A progress shows on a terminal how far long work has come.
type progress struct {
	to    io.Writer // nil: nobody looks
	what  string
	done  int
	total int
	began time.Time
	said  time.Time
}

func (a *app) progress(what string) *progress {
	p := &progress{what: what, began: time.Now()}
	if terminal(a.log) {
		p.to = a.log
	}
	return p
}

func (p *progress) add(done, total int) {
	p.done, p.total = p.done+done, max(p.total, total)
	if p.to == nil || time.Since(p.began) < time.Second || time.Since(p.said) < 200*time.Millisecond {
		return
	}
	p.said = time.Now()
	fmt.Fprintf(p.to, "\r\x1b[K%d of about %d %s", p.done, max(p.done, p.total), p.what)
}

func (p *progress) end() {
	if !p.said.IsZero() {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}

// paint colours a text for a terminal, unless NO_COLOR is set.
func (a *app) paint(text, code string) string {
	if !terminal(a.out) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// mood is the colour of a record.
func mood(r *dedupstore.Record) string {
	switch {
	case r.Outcome.Kind == dedupstore.Succeeded:
		return green
	case slices.Contains([]dedupstore.Kind{dedupstore.Failed, dedupstore.Unknown}, r.Outcome.Kind):
		return red
	default:
		return yellow
	}
}
