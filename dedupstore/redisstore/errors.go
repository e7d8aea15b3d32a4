package redisstore

import "fmt"

// ServerError says which setting makes a server unfit for the store. Change the setting, or override the check as the
// advice says. Until then every claim is refused with it.
type ServerError struct {
	Server  string // host:port
	Setting string // such as "maxmemory-policy"
	Value   string // as found
	Advice  string // what to do
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("server %s: %s is %q: %s", e.Server, e.Setting, e.Value, e.Advice)
}
