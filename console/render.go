package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
)

//go:embed templates/*.html
var texts embed.FS

// A page is what the layout shows.
type page struct {
	*visitor
	Title string
	At    string // the screen of the navigation that it belongs to
	Live  string // what its live part asks /live for; empty: it has none
	Token string
	Now   time.Time
	Snap  *snapshot
	Body  any
}

var pages = func() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(funcs).ParseFS(texts, "templates/layout.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{
		"overview", "messages", "message", "failures", "letter", "outbox", "health", "log", "plan", "task", "sorry",
	} {
		all[name] = template.Must(template.Must(base.Clone()).ParseFS(texts, "templates/"+name+".html"))
	}
	return all
}()

// render writes a page. It makes all of it first: an error shows as an error, not as half a page.
func (c *Console) render(w http.ResponseWriter, v *visitor, name string, p *page) error {
	p.visitor, p.Token = v, c.token(v.session)
	if p.Now.IsZero() {
		p.Now = time.Now()
	}
	if p.Snap == nil {
		p.Snap = c.now()
	}
	var b bytes.Buffer
	if err := pages[name].ExecuteTemplate(&b, "layout", p); err != nil {
		return refuse(http.StatusInternalServerError, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(plain(b.Bytes())) // a client that is gone cannot be told
	return nil
}

// raw are attributes whose text is sent back or copied, and not shown.
var raw = regexp.MustCompile(` (?:value|data-copy)="[^"]*"`)

// plain shows format characters of others as such: a right-to-left override would make "paid not failed" of "paid ton
// deliaf". Text has no quotes that are not escaped, so an attribute is one.
func plain(html []byte) []byte {
	if bytes.IndexFunc(html, isFormat) < 0 {
		return html
	}
	var out []byte
	at := 0
	for _, kept := range append(raw.FindAllIndex(html, -1), []int{len(html), len(html)}) {
		out = append(out, bytes.Map(func(r rune) rune {
			if isFormat(r) {
				return utf8.RuneError
			}
			return r
		}, html[at:kept[0]])...)
		out = append(out, html[kept[0]:kept[1]]...)
		at = kept[1]
	}
	return out
}

func isFormat(r rune) bool { return unicode.Is(unicode.Cf, r) }

var funcs = template.FuncMap{
	"time":    timeTag,
	"span":    explain.Span,
	"num":     number,
	"tone":    tone,
	"stateOf": operate.StateOf,
	"scope":   func(k dedupstore.Key) string { return k.Tenant + ":" + k.Group + ":" + k.Handler },
	"link":    link,
	"short":   short,
	"spark":   spark,
	"hours": func(hours [24]int) (points []float64) {
		for _, n := range hours {
			points = append(points, float64(n))
		}
		return points
	},
	"bars":    bars,
	"split":   split,
	"picture": picture,
	"plural":  plural,
	"text":    func(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") },
	"title":   title,
	"verbs":   func() []Action { return []Action{Complete, Archive, Rerun, Forget} },
	"dict":    dict,
}

// dict makes the data of a template that takes several values.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// timeTag shows a time as a distance from now. The browser keeps it true, and shows the exact time in the viewer's
// zone.
func timeTag(at, now time.Time) template.HTML {
	if at.IsZero() {
		return `<span class="none">–</span>`
	}
	at = at.UTC()
	return template.HTML(`<time datetime="` + at.Format(time.RFC3339Nano) + `" title="` +
		at.Format("2006-01-02 15:04:05.000 UTC") + `">` + ago(at, now) + `</time>`)
}

func ago(at, now time.Time) string {
	switch d := now.Sub(at); {
	case d >= time.Second:
		return explain.Span(d) + " ago"
	case d <= -time.Second:
		return "in " + explain.Span(-d)
	default:
		return "just now"
	}
}

// number writes a count with separators.
func number(n any) string {
	s := fmt.Sprint(n)
	if f, ok := n.(float64); ok {
		if f < 10 && f > 0 {
			return strconv.FormatFloat(f, 'f', 1, 64)
		}
		s = strconv.FormatFloat(f, 'f', 0, 64)
	}
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

func percent(part, of float64) string {
	switch {
	case of == 0:
		return "–"
	case part == of || part == 0:
		return fmt.Sprintf("%.0f %%", 100*part/of)
	default:
		return fmt.Sprintf("%.1f %%", 100*part/of)
	}
}

// tone is the class of a state, which has its colour.
func tone(state any) string {
	switch fmt.Sprint(state) {
	case "succeeded", "succeeded since", "published", "changed", "done", "sent", "discarded":
		return "good"
	case "retryable", "to run again", "publishing", "delayed", "pending", "warning", "stopped", "refused":
		return "wait"
	case "failed", "failed again", "dead", "error":
		return "bad"
	case "unknown":
		return "doubt"
	case "running", "leased":
		return "busy"
	default:
		return "quiet"
	}
}

// short leaves out the middle of a long ID. The whole is in the title.
func short(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:24]) + "…" + string(r[len(r)-12:])
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if cut, ok := strings.CutSuffix(what, "y"); ok {
		return number(n) + " " + cut + "ies"
	}
	return number(n) + " " + what + "s"
}

// link makes a relative link to a page, with parameters that are not empty.
func link(page string, pairs ...any) template.URL {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			q.Add(fmt.Sprint(pairs[i]), value)
		}
	}
	if page == "" {
		page = "./"
	}
	if len(q) == 0 {
		return template.URL(page)
	}
	return template.URL(page + "?" + q.Encode())
}

// traceLink is a link to a trace, or to what finds one: a template of the configuration with a value in it. A template
// that makes no http address is none.
func traceLink(pattern, name, value string) string {
	if pattern == "" || value == "" {
		return ""
	}
	to := strings.ReplaceAll(pattern, "{"+name+"}", url.QueryEscape(value))
	if u, err := url.Parse(to); err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) {
		return ""
	}
	return to
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
