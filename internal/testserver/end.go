package testserver

import "testing"

// EndOf says how a function ends the test that it is given: "skip", "fatal", or "" if it does not. It is for tests of
// test servers.
func EndOf(t *testing.T, ask func(testing.TB)) string {
	e := &ending{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(e) {
				panic(v)
			}
		}()
		ask(e)
	}()
	return e.did
}

// An ending notes how a test was ended.
type ending struct {
	testing.TB
	did string
}

func (e *ending) Helper()               {}
func (e *ending) Fatalf(string, ...any) { e.did = "fatal"; panic(e) }
func (e *ending) Skip(...any)           { e.did = "skip"; panic(e) }
