package console

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// skeleton is the tags of a page and the names of their attributes: all that is not text. It reads what the templates
// write, where attributes have double quotes or no value.
func skeleton(t testing.TB, html string) string {
	t.Helper()
	var b strings.Builder
	for {
		at := strings.IndexByte(html, '<')
		if at < 0 {
			return b.String()
		}
		html = html[at+1:]
		end := strings.IndexAny(html, " >\n")
		if end < 0 {
			t.Fatalf("a tag does not end: %q", html)
		}
		fmt.Fprintf(&b, "<%s", html[:end])
		html = html[end:]
		for html[0] != '>' {
			html = strings.TrimLeft(html, " \n/")
			end := strings.IndexAny(html, "= >\n")
			if end < 0 {
				t.Fatalf("an attribute does not end: %q", html)
			}
			if end > 0 {
				fmt.Fprintf(&b, " %s", html[:end])
			}
			html = html[end:]
			if rest, value := strings.CutPrefix(html, `="`); value {
				end := strings.IndexByte(rest, '"')
				if end < 0 {
					t.Fatalf("a value does not end: %q", rest)
				}
				html = rest[end+1:]
			}
			html = strings.TrimLeft(html, " \n")
			if html == "" {
				t.Fatal("a tag does not end")
			}
		}
		b.WriteString(">")
	}
}

// pieces are what markup is made of.
var pieces = []string{
	"<script>alert(1)</script>", "</script>", "<", ">", `"`, "'", "`", "&", "&lt;", "=", "/", " ", "<!--", "-->",
	"<![CDATA[",
	"</td>", "</title>", "</textarea>", "<img src=x onerror=alert(1)>", `" onmouseover="alert(1)`,
	"javascript:alert(1)",
	"{{.}}", "${x}", "\u2028", "\u202e", "\ufeff", "é", "日本", "%3Cscript%3E", "\\u003c", "data:text/html,", "a", "7",
	"#", "..", "?", ";",
}

func randomText(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(6) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// setText puts a text of others wherever one can be.
func (s *site) setText(id, text string) dedupstore.Key {
	s.Helper()
	k := dedupstore.Key{Tenant: cut(text, 100), Group: cut(text, 100), Handler: cut(text, 100), ID: cut(id, 500)}
	if k.Validate() != nil {
		k = key("plain")
	}
	kept := cut(strings.ToValidUTF8(text, "?"), 500) // stores take nothing else; brokers do
	output := dedupstore.Produced{ID: kept, Topic: kept, Key: kept}
	end := dedupstore.Finish{Retention: time.Hour, Published: true, Outcome: dedupstore.Outcome{
		Kind: dedupstore.Failed, Reason: kept, Result: []byte(text), Produced: []dedupstore.Produced{output},
	}}
	if dedupstore.ValidateSettlement(end) != nil {
		end.Outcome.Produced = nil
	}
	s.ends(k, end)
	now := time.Now()
	s.box.mu.Lock()
	s.box.rows = []outbox.RowInfo{
		{ID: k.ID, Topic: text, State: outbox.Dead, Error: text, Written: now, Ended: now},
	}
	s.box.mu.Unlock()
	letter := deadletters.Letter{Position: "1", Time: now, Message: producer.Message{ID: text, Payload: []byte(text)}}
	letter.Header = producer.Header{text: text}
	for _, name := range []string{
		producer.HeaderOriginalID, producer.HeaderHandler, producer.HeaderTopic, producer.HeaderOutcome,
		producer.HeaderReason, producer.HeaderAttempts, producer.HeaderKey,
	} {
		letter.Header[name] = text
	}
	s.dead.Change(func([]deadletters.Letter) []deadletters.Letter { return []deadletters.Letter{letter} })
	return k
}

func cut(s string, most int) string {
	s = s[:min(most, len(s))]
	for !utf8.ValidString(s) && s != "" {
		s = s[:len(s)-1]
	}
	return s
}

// textPages are pages that show a text of others everywhere.
func textPages(k dedupstore.Key, text string) []string {
	return []string{
		"messages", "messages?" + url.Values{"id": {text}, "reason": {text}, "group": {text}}.Encode(), messageLink(k),
		"failures?list=1", "failures?" + url.Values{"pattern": {text}, "list": {"1"}}.Encode(),
		"failures?letters=dead.billing", "letter?in=dead.billing&at=1",
		"failures?" + url.Values{"letters": {"dead.billing"}, "letter": {text}, "reason": {text}}.Encode(),
		"outbox",
		"outbox?" + url.Values{"topic": {text}, "id": {text}, "state": {"all"}}.Encode(),
		"messages?" + url.Values{"state": {text}}.Encode(), "messages?" + url.Values{"in": {text}}.Encode(),
	}
}

// show returns a page, without a server between.
func (s *site) show(page string) (status int, body string) {
	s.Helper()
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://localhost/"+page, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	s.console.Handler().ServeHTTP(w, r)
	return w.status, w.String()
}

func markupSite(t testing.TB) *site {
	t.Helper()
	return newSite(t, func(c *Config) { c.Authorize = everything })
}

// No ID, reason, header or payload can become markup: the tags of a page are those of a page with plain texts.
func FuzzPages_TextStaysText(f *testing.F) {
	for _, p := range pieces {
		f.Add("id"+p, p)
	}
	s := markupSite(f)
	f.Fuzz(func(t *testing.T, id, text string) {
		s.TB = t
		k := s.setText(id, text)
		for _, page := range textPages(k, text) {
			_, body := s.show(page)
			known(t, page, skeleton(t, body))
		}
		s.forgets(k)
	})
}

// known fails for a tag or an attribute that no template has.
func known(t *testing.T, page, bones string) {
	t.Helper()
	for tag := range strings.SplitSeq(strings.Trim(bones, "<>"), "><") {
		names := strings.Fields(tag)
		if !slices.Contains(tags, strings.TrimPrefix(names[0], "/")) {
			t.Errorf("%s has the tag %q", page, names[0])
		}
		for _, name := range names[1:] {
			if !slices.Contains(attributes, name) {
				t.Errorf("%s has the attribute %q in %q", page, name, names[0])
			}
		}
	}
}

var tags = strings.Fields("!doctype html head meta title link script body a header svg circle path form input " +
	"kbd p span nav " +
	"button main section h1 h2 h3 div dl dt dd dialog b label select option table thead tbody tr th td rect " +
	"time ol ul li " +
	"small code pre defs marker text g polyline polygon progress fieldset legend")

var attributes = strings.Fields("html lang data-now charset name content rel href src defer class viewBox " +
	"aria-hidden cx cy r d id " +
	"action role type placeholder aria-label autocomplete spellcheck aria-current tabindex value selected title " +
	"method " +
	"aria-labelledby data-copy datetime x y width height rx preserveAspectRatio points data-live data-announce size " +
	"refX refY markerWidth markerHeight orient max required checked aria-live")

// TestPages_TextsWithMarkup has 500 texts, and 10,000 with ONCEMILL_PROOF=1. They are on lists, and each is on the page
// of its message.
func TestPages_TextsWithMarkup(t *testing.T) {
	t.Parallel()
	texts := 500
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		texts = 10_000
	}
	s := markupSite(t)
	random := rand.New(rand.NewPCG(1, 2))
	one := func(id, text string) string {
		k := s.setText(id, text)
		status, body := s.show(messageLink(k))
		if status != http.StatusOK {
			t.Fatalf("%q: status %d", id, status)
		}
		s.forgets(k)
		return skeleton(t, body)
	}
	plain := one("id", "plain")
	for i := range texts {
		id, text := randomText(random)+numbered("", i), randomText(random)+"x"
		if bones := one(id, text); bones != plain {
			t.Fatalf("%q and %q made the page\n%s\nwant\n%s", id, text, bones, plain)
		}
	}
	for i := range min(texts, 1000) {
		s.setText(randomText(random)+numbered("", i), randomText(random)+"x")
	}
	for _, page := range []string{"messages", "failures?list=1", "failures?letters=dead.billing", "outbox"} {
		_, body := s.show(page)
		known(t, page, skeleton(t, body))
	}
}

// forgets removes a record.
func (s *site) forgets(k dedupstore.Key) {
	s.Helper()
	records, err := s.store.Look(s.Context(), []dedupstore.Key{k})
	if err == nil {
		err = s.store.Change(s.Context(), records[0], dedupstore.Forget{})
	}
	if err != nil {
		s.Fatal(err)
	}
}

// A recorder keeps a page.
type recorder struct {
	strings.Builder
	header http.Header
	status int
}

func (r *recorder) Header() http.Header    { return r.header }
func (r *recorder) WriteHeader(status int) { r.status = status }
