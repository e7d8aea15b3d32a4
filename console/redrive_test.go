package console

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
)

// fails makes failures with a dead letter each, in a topic.
func (s *site) fails(topic, reason string, ids ...string) {
	s.Helper()
	for _, id := range ids {
		letter := dedupstore.Produced{ID: "dead-" + id, Topic: topic}
		s.finishes(key(id), dedupstore.Outcome{
			Kind: dedupstore.Failed, Reason: reason + " " + id, Produced: []dedupstore.Produced{letter},
		})
		s.dead.Add(s.letter(key(id), reason+" "+id))
	}
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
	sends := func(want []string, forms ...url.Values) {
		t.Helper()
		for _, form := range forms {
			s.acts(Redrive, form, nil)
		}
		if got := s.reruns.Sent(); !slices.Equal(got, want) {
			t.Errorf("sent %v, want %v", got, want)
		}
	}
	sends([]string{"orders/1"}, url.Values{"in": {"records"}, "letters": {"dead.billing"}, "key": {key("1").String()}})
	sends([]string{"orders/1", "orders/2", "orders/3"}, form)
	sends([]string{"orders/1", "orders/2", "orders/3", "orders/9"}, url.Values{
		"in": {"records"}, "letters": {"dead.billing"}, "handler": {"charge"}, "reason": {"account"},
	})
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
	if got := s.reruns.Sent(); !slices.Equal(got, []string{"orders/3"}) {
		t.Errorf("sent %v", got)
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
			c.DeadLetters = append(c.DeadLetters, DeadLetterTopic{Name: more, Source: c.DeadLetters[0].Source})
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
	for i := range operate.MostGroups + 3 {
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
		"letter?in=dead.billing&at=1",
	} {
		_, body := s.get(page)
		shown := raw.ReplaceAllString(body, "")
		if strings.Contains(shown, "\u202e") || !strings.Contains(shown, "\ufffd") {
			t.Errorf("%s shows\n%s", page, shown)
		}
	}
	s.acts(Rerun, url.Values{"in": {"records"}, "key": {key(evil).String()}}, nil)
}

// slowPages take a moment.
type slowPages struct{ *consumertest.Letters }

func (l slowPages) Page(
	ctx context.Context, after string, n int, wanted func(*deadletters.Letter) bool,
) (deadletters.Page, error) {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
		return deadletters.Page{}, ctx.Err()
	}
	return l.Letters.Page(ctx, after, n, wanted)
}

// Twelve people who open a large topic at once have it read once.
func TestLetters_ACrowdReadsATopicOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.DeadLetters[0].Source = slowPages{c.DeadLetters[0].Source.(*consumertest.Letters)}
	}).fill()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if status, body := s.get("failures?letters=dead.billing"); status != http.StatusOK ||
				!strings.Contains(body, "at=17") {
				t.Errorf("status %d\n%s", status, body)
			}
		})
	}
	all.Wait()
	if n := s.dead.Reads(); n != 1 {
		t.Errorf("the topic was read %d times", n)
	}
	if _, body := s.get("failures?letters=dead.billing&reason=nothing"); strings.Contains(body, "at=17") {
		t.Errorf("the filter does not filter:\n%s", body)
	}
}

// Letters are listed by pages, the newest first, with what has become of each, and are found by ID, key and reason.
func TestLetters_ByPagesWithMarks(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	for i := range 2*pageSize + 1 {
		s.fails("dead.billing", "refused", numbered("m", i))
	}
	s.dead.Change(func(all []deadletters.Letter) []deadletters.Letter {
		all[0].Header[producer.HeaderKey] = "customer-7"
		return all
	})
	next := regexp.MustCompile(`id="next-letters" class="button" href="([^"#]+)`)
	page, seen := "failures?letters=dead.billing", 2*pageSize+1
	for range 3 {
		_, body := s.get(page)
		for range min(pageSize, seen) {
			seen--
			at := strings.Index(body, ">"+numbered("m", seen)+"</a>")
			if at < 0 {
				t.Fatalf("%s is not where it belongs, or twice, on %s:\n%s", numbered("m", seen), page, body)
			}
			body = body[at+1:]
		}
		if found := next.FindStringSubmatch(body); found != nil {
			page = "failures" + strings.TrimPrefix(html.UnescapeString(found[1]), "failures")
		} else if seen > 0 {
			t.Fatalf("%d are left, and there is no next page:\n%s", seen, body)
		}
	}
	for query, want := range map[string]string{
		"key=customer-7": numbered("m", 0), "letter=" + numbered("m", 42): numbered("m", 42),
		"letter=dead-" + numbered("m", 43): numbered("m", 43), "reason=" + numbered("m", 44): numbered("m", 44),
	} {
		_, body := s.get("failures?letters=dead.billing&" + query)
		if !strings.Contains(body, ">"+want+"</a>") || strings.Count(body, `name="at"`) != 1 {
			t.Errorf("%s finds\n%s", query, body)
		}
	}
	newest := strconv.Itoa(2*pageSize + 1)
	s.acts(Redrive, url.Values{"letters": {"dead.billing"}, "at": {newest, "1"}}, nil)
	want := []string{"orders/" + numbered("m", 0), "orders/" + numbered("m", 2*pageSize)}
	if got := s.reruns.Sent(); !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	for query, n := range map[string]int{"": 1, "&key=customer-7": 1, "&letter=" + numbered("m", 7): 0} {
		_, body := s.get("failures?letters=dead.billing" + query)
		if strings.Count(body, ">succeeded since<") != n {
			t.Errorf("%q does not have %d marks:\n%s", query, n, body)
		}
	}
}

// Letters that nobody can use are put aside, those that were chosen or a filter finds, and never all by a slip.
func TestLetters_AreDiscarded(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.fails("dead.billing", "no such order", "1", "2", "3")
	s.fails("dead.billing", "card refused", "8", "9")
	body := s.acts(Discard, url.Values{"letters": {"dead.billing"}, "at": {"2"}}, url.Values{"why": {"of no use"}})
	if len(s.dead.All()) != 4 || !strings.Contains(body, "Discard 1 letter") {
		t.Errorf("%d are left\n%s", len(s.dead.All()), body)
	}
	s.acts(Discard, url.Values{"letters": {"dead.billing"}, "of": {"list"}, "reason": {"card"}}, nil)
	for _, l := range s.dead.All() {
		if l.Original() != "1" && l.Original() != "3" {
			t.Errorf("%s is left", l.Original())
		}
	}
	entries := s.entries()
	if e := entries[0]; len(entries) != 2 || e.Action != Discard || e.Where != "dead.billing" || e.What != `["2"]` ||
		e.Result != "discarded" || e.Why != "of no use" {
		t.Errorf("the audit log has %+v", entries)
	}
	all := url.Values{"do": {"discard"}, "letters": {"dead.billing"}, "of": {"list"}, "token": {s.token()}}
	if status, body, _ := s.post("plan", all); status != http.StatusBadRequest {
		t.Errorf("all: status %d\n%s", status, body)
	}
	if len(s.reruns.Sent()) > 0 {
		t.Errorf("sent %v", s.reruns.Sent())
	}
}

// endlessLetters come without end, as those of a topic that is too large for a plan.
type endlessLetters struct{ *consumertest.Letters }

func (l endlessLetters) Each(_ context.Context, _ deadletters.Reading, do func(deadletters.Letter) bool) error {
	one := l.All()[0]
	for i := 0; do(one); i++ {
		one.Position = strconv.Itoa(i)
	}
	return nil
}

// A plan of a topic that is too large says what it has not seen.
func TestPlan_SaysWhatItHasNotSeen(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = everything
		c.DeadLetters[0].Source = endlessLetters{c.DeadLetters[0].Source.(*consumertest.Letters)}
	}).runs()
	s.fails("dead.billing", "refused", "1")
	form := url.Values{"do": {"redrive"}, "letters": {"dead.billing"}, "token": {s.token()}}
	if _, body, _ := s.post("plan", form); !strings.Contains(body, `id="unseen-letters"`) {
		t.Error(body)
	}
}

// What people know is often the order key, such as a customer: the search leads on to it.
func TestMessages_AnOrderKeyIsFound(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	s.box.mu.Lock()
	for i := range s.box.rows {
		s.box.rows[i].Key = []string{"customer-7", "customer-8"}[i%2]
	}
	s.box.mu.Unlock()
	_, body := s.get("messages?id=customer-7")
	for _, link := range []string{
		`href="outbox?in=shop&amp;key=customer-7&amp;state=all"`,
		`href="failures?key=customer-7&amp;letters=dead.billing#letters"`,
	} {
		if !strings.Contains(body, link) {
			t.Errorf("no %s in\n%s", link, body)
		}
	}
	if _, body = s.get("outbox?in=shop&key=customer-7&state=all"); strings.Count(body, `class="row id"`) != 2 ||
		strings.Contains(body, ">row-wait<") {
		t.Error(body)
	}
	form := url.Values{"do": {"requeue"}, "in": {"shop"}, "all": {"1"}, "key": {"customer-9"}, "token": {s.token()}}
	if _, body, _ = s.post("plan", form); !strings.Contains(body, "Nothing would change") {
		t.Errorf("the key is not heeded:\n%s", body)
	}
}

// Many who plan at once wait for each other, and each reads for a shorter time: nobody is refused.
func TestPlan_ManyAtOnceTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = everything
		c.DeadLetters[0].Source = endlessLetters{c.DeadLetters[0].Source.(*consumertest.Letters)}
	}).runs()
	s.fails("dead.billing", "refused", "1")
	form := url.Values{"do": {"redrive"}, "letters": {"dead.billing"}, "token": {s.token()}}
	for range mostReading {
		s.console.turns <- struct{}{}
	}
	s.console.reading.Add(5)
	var all sync.WaitGroup
	var took time.Duration
	all.Go(func() {
		began := time.Now()
		status, body, _ := s.post("plan", form)
		if status != http.StatusOK || !strings.Contains(body, `id="unseen-letters"`) {
			t.Errorf("status %d\n%s", status, body)
		}
		took = time.Since(began)
	})
	for s.console.reading.Load() < 6 {
		time.Sleep(time.Millisecond)
	}
	<-s.console.turns
	all.Wait()
	if took > lettersTime {
		t.Errorf("the sixth plan took %v, want about %v", took, leastTime)
	}
	if n := len(s.console.turns); n != mostReading-1 {
		t.Errorf("%d turns are taken", n)
	}
}

// A redrive of chosen failures takes the letters of their handlers: others may have messages with the same IDs.
func TestRedrive_LettersOfOtherHandlersStay(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.fails("dead.billing", "card refused", "7")
	for _, other := range []dedupstore.Key{
		{Tenant: "globex", Group: "billing", Handler: "charge", ID: "7"},
		{Tenant: "default", Group: "billing", Handler: "mail", ID: "7"},
	} {
		s.finishes(other, dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "no answer"})
		letter := s.letter(other, "no answer")
		letter.ID = "dead-" + other.String()
		s.dead.Add(letter)
	}
	s.acts(Redrive, url.Values{"in": {"records"}, "letters": {"dead.billing"}, "key": {key("7").String()}}, nil)
	if got := s.reruns.Sent(); !slices.Equal(got, []string{"orders/7"}) {
		t.Errorf("sent %v, want one", got)
	}
}

// Archived failures are not among those that a group shows, until they fail again.
func TestRedrive_OfAGroupLeavesWhatIsArchived(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.fails("dead.billing", "card refused", "1", "2", "3")
	s.acts(Archive, url.Values{"in": {"records"}, "key": {key("1").String(), key("3").String()}},
		url.Values{"why": {"paid by hand"}})
	s.forgets(key("3"))
	s.fails("dead.billing", "card refused", "3")
	s.acts(Redrive, url.Values{
		"in": {"records"}, "state": {openFailures}, "pattern": {"card refused #"}, "letters": {"dead.billing"},
	}, nil)
	if got := s.reruns.Sent(); !slices.Equal(got, []string{"orders/2", "orders/3"}) {
		t.Errorf("sent %v, want all but the one that is archived", got)
	}
}
