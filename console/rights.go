package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
)

// An Action is what a right is for.
type Action string

// The actions. View and Payloads change nothing; the others are verbs of the command oncemill, too.
const (
	View     Action = "view"     // all screens, without payloads
	Payloads Action = "payloads" // results of records, headers and payloads of dead letters
	Forget   Action = "forget"
	Rerun    Action = "rerun"
	Complete Action = "complete"
	Archive  Action = "archive" // put a failure aside with a note
	Redrive  Action = "redrive"
	Requeue  Action = "requeue"
	Discard  Action = "discard"
	Replay   Action = "replay"
)

// verbs are the actions that change something, in the order in which pages offer them.
var verbs = []Action{Redrive, Rerun, Complete, Archive, Forget, Requeue, Discard, Replay}

var (
	errReadOnly = errors.New("this console is read-only: set Config.Authorize, or start oncemill console with --write")
	errToken    = errors.New("the form is old, or not from this console: go back, reload the page, and try again")
)

// A visitor is somebody who may look.
type visitor struct {
	Who     string
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

// admit returns a visitor with all rights, or why they may not even look.
func (c *Console) admit(r *http.Request) (*visitor, error) {
	who, err := c.config.Authorize(r, View)
	if err != nil {
		return nil, err
	}
	v := &visitor{Who: who, may: map[Action]bool{View: true}}
	for _, a := range append([]Action{Payloads}, verbs...) {
		_, err := c.config.Authorize(r, a)
		v.may[a] = err == nil
	}
	return v, nil
}

const cookieName = "oncemill_console"

// session returns the session of a request, and gives it one if it has none. The cookie has no path: browsers then
// limit it to the folder of the page, whatever prefix that has out there.
func session(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(cookieName); err == nil && len(c.Value) == len(rand.Text()) {
		return c.Value
	}
	s := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: s, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	return s
}

// token is what forms of a session carry.
func (c *Console) token(session string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(session))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// genuine reports whether a form was made for the session that its cookie names.
func (c *Console) genuine(r *http.Request) bool {
	cookie, err := r.Cookie(cookieName)
	return err == nil && hmac.Equal([]byte(r.PostFormValue("token")), []byte(c.token(cookie.Value)))
}
