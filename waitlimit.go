package oncemill

// A WaitLimit bounds how many calls wait at once, over all the calls that share it. With it a transport keeps room for
// deliveries that can run. It is safe for concurrent use. A nil *WaitLimit sets no bound.
type WaitLimit struct{ slots chan struct{} }

// NewWaitLimit returns a bound of n calls. With zero or less none may wait.
func NewWaitLimit(n int) *WaitLimit { return &WaitLimit{make(chan struct{}, max(n, 0))} }

// enter takes a slot, and reports false if there is none.
func (l *WaitLimit) enter() bool {
	if l == nil {
		return true
	}
	select {
	case l.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *WaitLimit) leave() {
	if l != nil {
		<-l.slots
	}
}
