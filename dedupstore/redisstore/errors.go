package redisstore

import (
	"errors"
	"fmt"
)

// ServerError says which setting makes a server unfit for the store. Change the setting, or override the check as the
// advice says. Until then every claim is refused with it.
type ServerError struct {
	Server  string // host:port
	Setting string // such as "maxmemory-policy"
	Value   string // as found
	Advice  string // what to do
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("redisstore: server %s: %s is %q: %s", e.Server, e.Setting, e.Value, e.Advice)
}

var (
	errReply = errors.New("the script's reply is malformed")

	// errNoNode refuses a claim that was sent while its node was not known.
	errNoNode = errors.New("the layout of the cluster was not known")

	errPanic = errors.New("the client panicked") // in a hook
)
