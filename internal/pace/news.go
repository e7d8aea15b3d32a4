package pace

import (
	"sync"
	"time"
)

// newsEvery is how often the log says the same again.
const newsEvery = time.Minute

// News tells what is new of the lines that loops would log again and again. The zero value is ready. It is safe for
// concurrent use.
type News struct {
	mu   sync.Mutex
	said map[string]saying // by line: few
}

type saying struct {
	why string
	at  time.Time
}

// Is reports whether a line is to be logged: because its reason has changed, or because it was not for a minute.
func (n *News) Is(line, why string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if last, known := n.said[line]; known && last.why == why && now.Sub(last.at) < newsEvery {
		return false
	}
	if n.said == nil {
		n.said = map[string]saying{}
	}
	n.said[line] = saying{why, now}
	return true
}
