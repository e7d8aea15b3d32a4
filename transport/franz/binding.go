package franz

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A binding ties a worker to the client that was made with its Opts, and to its one Run on that.
type binding struct {
	mu      sync.Mutex
	made    *kgo.Client // the last client that was made with Opts
	intact  bool        // its callbacks are those of Opts
	running *kgo.Client // the one of Run; nil: there was none
	session *session    // nil: it does not run
}

// born notes which client was made with the worker's options.
func (b *binding) born(cl *kgo.Client, intact bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made, b.intact = cl, intact
}

// is reports whether a client is the last that was made with the worker's options, and has its callbacks.
func (b *binding) is(cl *kgo.Client) (last, intact bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.made == cl, b.intact
}

func (b *binding) begin(cl *kgo.Client, s *session) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running != nil {
		return setupError("this worker", "has run already: make a new one, and a new client with its Opts, because "+
			"records that were fetched and not handled would be passed over")
	}
	b.running, b.session = cl, s
	return nil
}

func (b *binding) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = nil
}

// current returns the session that runs on a client, or nil.
func (b *binding) current(cl *kgo.Client) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running != cl {
		return nil
	}
	return b.session
}
