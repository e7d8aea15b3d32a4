package natsjs

import "time"

// LookEvery sets how often the worker looks at its consumer again while it runs.
func (w *Worker) LookEvery(d time.Duration) { w.engine.lookEvery = d }

// LookEvery sets how often the source looks at its consumers again while it runs.
func (s *Source) LookEvery(d time.Duration) { s.engine.lookEvery = d }

// GoneFor sets how long its consumer must be missing before the worker believes that it is deleted.
func (w *Worker) GoneFor(d time.Duration) { w.engine.goneFor = d }
