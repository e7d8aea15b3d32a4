package franz

import "time"

// LookEvery is how often a run looks for what kgo tells nobody.
func (w *Worker) LookEvery(every time.Duration) { w.look = every }
