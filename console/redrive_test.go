package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

// fails makes failures with a dead letter each, in a topic.
func (s *site) fails(topic, reason string, ids ...string) {
	s.Helper()
	for _, id := range ids {
		letter := dedupstore.Produced{ID: "dead-" + id, Topic: topic}
		s.finishes(key(id), dedupstore.Outcome{
			Kind: dedupstore.Failed, Reason: reason + " " + id, Produced: []dedupstore.Produced{letter},
		})
		s.dead.mu.Lock()
		s.dead.all = append(s.dead.all, DeadLetter{
			ID: letter.ID, Original: id, Reason: reason + " " + id, Topic: "orders",
		})
		s.dead.mu.Unlock()
	}
}

func (s *site) redriven() (which []DeadLetterFilter) {
	s.dead.mu.Lock()
	defer s.dead.mu.Unlock()
	for _, r := range s.dead.redriven {
		which = append(which, r.DeadLetterFilter)
	}
	return which
}

// In a group of failures the first action is the one that runs them again.
func TestFailures_GroupOffersRedriveFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.fails("dead.billing", "card service: 503", "1", "2", "3")
	s.fails("dead.billing", "no such account", "9")
	s.eventually("failures", "card service: # #")
	group := "failures?in=records&list=1&pattern=" + url.QueryEscape("card service: # #")
	_, body := s.get(group)
	first := strings.Index(body, `name="do"`)
	if first < 0 || !strings.HasPrefix(body[first:], `name="do" value="redrive"`) {
		t.Errorf("the first action is not redrive:\n%s", body)
	}
	form := url.Values{
		"in": {"records"}, "state": {openFailures}, "pattern": {"card service: # #"}, "letters": {"dead.billing"},
	}
	s.acts(Redrive, form, nil)
	s.acts(Redrive, url.Values{"in": {"records"}, "letters": {"dead.billing"}, "key": {key("2").String()}}, nil)
	s.acts(Redrive, url.Values{"in": {"records"}, "letters": {"dead.billing"}, "handler": {"charge"},
		"reason": {"account"}}, nil)
	want := []string{"{ card service: # # []}", "{  [2]}", "{  [9]}"}
	for i, got := range s.redriven() {
		if fmt.Sprint(got) != want[i] {
			t.Errorf("redrive %d is of %v, want %s", i, got, want[i])
		}
	}
}

// A rerun says that nobody delivers, before and after, and offers what does.
func TestRerun_SaysWhoMustDeliver(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.fails("dead.billing", "refused", "1", "2")
	form := url.Values{"in": {"records"}, "key": {key("1").String(), key("2").String()}}
	body := s.acts(Rerun, form, nil)
	if !strings.Contains(body, "A rerun delivers nothing") || !strings.Contains(body, `id="do-redrive"`) {
		t.Errorf("the task does not say who delivers:\n%s", body)
	}
	form.Set("do", "rerun")
	form.Set("token", s.token())
	s.fails("dead.billing", "refused", "3")
	form["key"] = []string{key("3").String()}
	_, body, at := s.post("plan", form)
	if !strings.Contains(body, "A rerun delivers nothing") || !strings.Contains(body, `id="do-redrive"`) {
		t.Errorf("the plan does not say who delivers:\n%s", body)
	}
	plan, _ := url.ParseQuery(at[strings.Index(at, "?")+1:])
	s.acts(Redrive, url.Values{"plan": plan["id"], "letters": {"dead.billing"}}, nil)
	if got := s.redriven(); len(got) != 1 || !slices.Equal(got[0].IDs, []string{"3"}) {
		t.Errorf("the redrive is of %v", got)
	}
	if _, body = s.get(messageLink(key("1"))); !strings.Contains(body, "a rerun sends none") ||
		!strings.Contains(body, `id="do-redrive"`) {
		t.Errorf("the message does not say who delivers:\n%s", body)
	}
}

// A message has one button for its redrive: the record names the topic.
func TestMessage_OneRedriveForTheTopicOfTheRecord(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = everything
		for _, more := range []string{"dead.mail", "dead.stock"} {
			c.DeadLetters = append(c.DeadLetters, DeadLetterTopic{more, c.DeadLetters[0].Source})
		}
	}).runs()
	s.fails("dead.mail", "refused", "1")
	_, body := s.get(messageLink(key("1")))
	if n := strings.Count(body, `id="do-redrive"`); n != 1 ||
		!strings.Contains(body, `<input type="hidden" name="letters" value="dead.mail">`) {
		t.Errorf("%d buttons in\n%s", n, body)
	}
}

// Failures beyond the groups that are told apart can be listed and changed.
func TestFailures_OtherReasonsCanBeChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	for i := range mostGroups + 3 {
		s.fails("dead.billing", strings.Repeat("x", i+1), numbered("m", i))
	}
	s.eventually("failures", operate.OtherReasons)
	form := url.Values{
		"do": {"archive"}, "in": {"records"}, "state": {openFailures}, "pattern": {operate.OtherReasons},
		"token": {s.token()},
	}
	status, body, _ := s.post("plan", form)
	if status != http.StatusOK || !strings.Contains(body, "Archive 3 records") {
		t.Errorf("status %d\n%s", status, body)
	}
	form.Set("do", "redrive")
	form.Set("letters", "dead.billing")
	if _, body, _ = s.post("plan", form); !strings.Contains(body, "letters of 3 messages") {
		t.Error(body)
	}
}

// What turns the order of letters round is shown as a letter, and sent back as it is.
func TestScreens_FormatCharactersAreShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	evil := "order-\u202e71000-redro"
	s.fails("dead.billing", "paid \u202edeliaf ton", evil)
	s.eventually("failures", "paid \ufffddeliaf ton")
	for _, page := range []string{
		"failures", "failures?list=1", "messages", messageLink(key(evil)), "failures?letters=dead.billing",
		"letter?in=dead.billing&id=" + url.QueryEscape(evil),
	} {
		_, body := s.get(page)
		shown := raw.ReplaceAllString(body, "")
		if strings.Contains(shown, "\u202e") || !strings.Contains(shown, "\ufffd") {
			t.Errorf("%s shows\n%s", page, shown)
		}
	}
	s.acts(Rerun, url.Values{"in": {"records"}, "key": {key(evil).String()}}, nil)
}

// countedLetters count how often a topic is read, which takes a moment.
type countedLetters struct {
	*toyLetters
	reads atomic.Int64
}

func (l *countedLetters) List(ctx context.Context, f DeadLetterFilter, n int) ([]DeadLetter, int, error) {
	l.reads.Add(1)
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	return l.toyLetters.List(ctx, f, n)
}

// Twelve people who open a large topic at once have it read once.
func TestLetters_ACrowdReadsATopicOnce(t *testing.T) {
	t.Parallel()
	var letters *countedLetters
	s := newSite(t, func(c *Config) {
		letters = &countedLetters{toyLetters: c.DeadLetters[0].Source.(*toyLetters)}
		c.DeadLetters[0].Source = letters
	}).fill()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if status, body := s.get("failures?letters=dead.billing"); status != http.StatusOK ||
				!strings.Contains(body, "dead-1") {
				t.Errorf("status %d\n%s", status, body)
			}
		})
	}
	all.Wait()
	if n := letters.reads.Load(); n != 1 {
		t.Errorf("the topic was read %d times", n)
	}
	if _, body := s.get("failures?letters=dead.billing&reason=nothing"); strings.Contains(body, "dead-1") {
		t.Errorf("the filter does not filter:\n%s", body)
	}
}
