package operate

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// An Action is what people do, and what a right is for.
type Action string

// An Entry is a line of the audit log, of the command or the console.
type Entry struct {
	Time    time.Time `json:"time"`
	Who     string    `json:"who"`
	Action  Action    `json:"action"`
	Where   string    `json:"in,omitempty"`
	What    string    `json:"what,omitempty"` // the key of a record, or IDs in JSON
	Fence   uint64    `json:"fence,omitempty"`
	Outcome string    `json:"outcome,omitempty"` // that somebody decided
	Why     string    `json:"why,omitempty"`
	Result  string    `json:"result"`
	Error   string    `json:"error,omitempty"`
}

// Decided tells the outcome that a change decides, without the result itself. Other changes decide none.
func Decided(change dedupstore.Change) string {
	complete, ok := change.(dedupstore.Complete)
	if !ok {
		return ""
	}
	o := complete.Outcome
	text := string(o.Kind)
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	if len(o.Result) > 0 {
		text += fmt.Sprintf(", with a result of %d bytes", len(o.Result))
	}
	return text
}

// ReadLog calls do for each change in an audit log, and counts the other lines, such as log-ins.
func ReadLog(r io.Reader, do func(Entry)) (others int, err error) {
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadBytes('\n')
		var line struct {
			Entry
			Msg, Topic, Key, ID string
			IDs                 json.RawMessage
		}
		switch e := &line.Entry; {
		case len(text) == 0:
		case json.Unmarshal(text, &line) != nil || e.Action == "":
			others++
		default: // the command says some of it in other places
			e.Where, e.What = cmp.Or(e.Where, line.Topic), cmp.Or(e.What, line.Key, line.ID, string(line.IDs))
			e.Result = cmp.Or(e.Result, line.Msg)
			do(*e)
		}
		if err == io.EOF {
			return others, nil
		}
		if err != nil {
			return others, err
		}
	}
}
