package main

import (
	"fmt"
	"net/url"
)

// checkURL says what is wrong with a server's URL, and never shows its credentials: NATS takes a token as the user, and a
// password with a slash in it ends where the parser does not expect it.
func checkURL(flagName, value string, schemes []string) error {
	if value == "" {
		return nil
	}
	u, err := url.Parse(value)
	if err != nil {
		return fmt.Errorf("-%s is not a URL (it is not shown, since it may hold a password), want one such as %s://127.0.0.1:PORT", flagName, schemes[0])
	}
	for _, s := range schemes {
		if u.Scheme == s && (u.Host != "" || s == "unix") {
			return nil
		}
	}
	if u.Host == "" { // what looks like a scheme may be a user
		return fmt.Errorf("-%s names no server (it is not shown, since it may hold a password), want a URL such as %s://127.0.0.1:PORT", flagName, schemes[0])
	}
	return fmt.Errorf("-%s is %q, want a URL such as %s://127.0.0.1:PORT", flagName, redacted(value), schemes[0])
}

// redacted is the part of a URL that may be shown.
func redacted(value string) string {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" {
		return "(hidden)"
	}
	return u.Scheme + "://" + u.Host
}
