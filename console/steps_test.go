package console

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// finishesStep makes the record of a step, whose name the store remembers.
func (s *site) finishesStep(id, step string) dedupstore.Key {
	s.Helper()
	k := key(id)
	k.Handler += "/step=" + step
	s.finishes(k, dedupstore.Outcome{Kind: dedupstore.Succeeded})
	now := time.Now()
	uses := []dedupstore.ScopeUse{{Scope: k.Scope(), First: now, Last: now}}
	if err := s.store.NoteScopes(context.Background(), uses); err != nil {
		s.Fatal(err)
	}
	return k
}

func (s *site) stateAt(k dedupstore.Key) dedupstore.State {
	s.Helper()
	records, err := s.store.Look(context.Background(), []dedupstore.Key{k})
	if err != nil {
		s.Fatal(err)
	}
	return records[0].State
}

func TestSteps_AreShownAndForgottenWithTheirMessage(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	step, needed := s.finishesStep("bad", "card"), s.finishesStep("busy", "card")
	_, body := s.get(messageLink(key("bad")))
	if !strings.Contains(body, `id="steps"`) || !strings.Contains(body, "step%3Dcard") ||
		strings.Contains(body, "The same ID in other handlers") {
		t.Errorf("the message does not show its step:\n%s", body)
	}
	s.acts(Rerun, url.Values{"in": {"records"}, "key": {key("bad").String()}}, nil)
	if now := s.stateAt(step); now != dedupstore.Finished {
		t.Errorf("after a rerun the step is %s", now)
	}
	s.acts(Forget, url.Values{"in": {"records"}, "key": {key("bad").String()}}, nil)
	if now := s.stateAt(step); now != dedupstore.Absent {
		t.Errorf("after a forget the step is %s", now)
	}
	if now := s.stateAt(needed); now != dedupstore.Finished {
		t.Errorf("the step of another message is %s", now)
	}
}
