package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/oncemill/oncemill/internal/operate"
)

// An Action is what a right is for.
type Action = operate.Action

// The actions. View and Payloads change nothing; the others are verbs of the command oncemill, too.
const (
	View     Action = "view"     // all screens, without payloads
	Payloads Action = "payloads" // results of records, headers and payloads of dead letters
	Forget   Action = "forget"
	Rerun    Action = "rerun"
	Complete Action = "complete"
	Archive  Action = "archive" // put a failure aside with a note
	Restore  Action = "restore" // take that back
	Redrive  Action = "redrive"
	Requeue  Action = operate.Requeue
	Discard  Action = operate.Discard
	Replay   Action = operate.Replay
)

// verbs are the actions that change something, in the order in which pages offer them.
var verbs = []Action{Redrive, Rerun, Complete, Archive, Restore, Forget, Requeue, Discard, Replay}

var (
	errNobodyMay = errors.New("this console shows nothing: set Config.Authorize, which says who may do what")
	errReadOnly  = errors.New("this console is read-only: Config.Authorize lets people look only")
	errToken     = errors.New("the form is old, or not from this console: go back, reload the page, and try again")
)

// A visitor is somebody who may look.
type visitor struct {
	Who     string
	person  string // who, or where they come from: bounds are for each
	may     map[Action]bool
	session string
}

// May reports whether a page offers an action.
func (v *visitor) May(a Action) bool { return v.may[a] }

// Writes reports whether the visitor may change anything.
func (v *visitor) Writes() bool {
	for _, a := range verbs {
		if v.may[a] {
			return true
		}
	}
	return false
}

// ViewOnly is a Config.Authorize that lets everybody look, and do nothing else.
func ViewOnly(_ *http.Request, a Action) (who string, err error) {
	if a != View {
		err = errReadOnly
	}
	return "", err
}

// admit finds out who a visitor is and which rights they have, or why they may not even look.
func (c *Console) admit(r *http.Request, v *visitor) error {
	who, err := c.config.Authorize(r, View)
	if err != nil {
		return err
	}
	v.Who, v.may = who, map[Action]bool{View: true}
	if v.person = who; who == "" {
		v.person, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	for _, a := range append([]Action{Payloads}, verbs...) {
		_, err := c.config.Authorize(r, a)
		v.may[a] = err == nil
	}
	return nil
}

const cookieName = "oncemill_console"

// session returns the session of a visitor, and gives them one if they have none. The cookie has no path: browsers then
// limit it to the folder of the page, whatever prefix that has out there.
func (c *Console) session(w http.ResponseWriter, r *http.Request, v *visitor) string {
	if s := c.sessionOf(r, v); s != "" {
		return s
	}
	id := rand.Text()
	s := id + "." + c.sign("session", id, v.Who)
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: s, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
	return s
}

// sessionOf is the session that a cookie names, if this console made it for that visitor; else it is empty.
func (c *Console) sessionOf(r *http.Request, v *visitor) string {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return ""
	}
	id, signed, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(signed), []byte(c.sign("session", id, v.Who))) {
		return ""
	}
	return cookie.Value
}

// sign makes what nobody else can make of some texts.
func (c *Console) sign(texts ...string) string {
	mac := hmac.New(sha256.New, c.secret)
	for _, text := range texts {
		fmt.Fprintf(mac, "%q", text)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// token is what forms of a session carry.
func (c *Console) token(session string) string { return c.sign("form", session) }

// genuine reports whether a form was made for the visitor's session.
func (c *Console) genuine(r *http.Request, v *visitor) bool {
	session := c.sessionOf(r, v)
	return session != "" && hmac.Equal([]byte(r.PostFormValue("token")), []byte(c.token(session)))
}
