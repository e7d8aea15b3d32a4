package oncemill

// Holds bounds how many calls hold at once, over all the calls that share it: a transport whose deliveries in flight are
// limited keeps room for those that can run. It is safe for concurrent use. A nil *Holds sets no bound.
type Holds struct{ slots chan struct{} }

// NewHolds returns a bound of n calls. With zero or less none may hold.
func NewHolds(n int) *Holds { return &Holds{make(chan struct{}, max(n, 0))} }

// enter takes a slot, and reports false if there is none.
func (h *Holds) enter() bool {
	if h == nil {
		return true
	}
	select {
	case h.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (h *Holds) leave() {
	if h != nil {
		<-h.slots
	}
}
