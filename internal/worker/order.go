package worker

import "sync"

// An Order starts work at once, but what shares an order key one after the other: what is next starts when the one
// before is done. How much there is at a time is up to the caller. The zero value is ready to use. It is safe for
// concurrent use; the order is that of the calls of Start.
type Order struct {
	mu      sync.Mutex
	waiting map[string][]func() // by order key; an entry, empty or not, means that something of the key is at work
}

// Start calls start as soon as all that was started before with the same order key is done: now, or in Done. With the
// key "" that is now, and Done need not be called.
func (o *Order) Start(key string, start func()) {
	if key != "" && !o.enter(key, start) {
		return
	}
	start()
}

func (o *Order) enter(key string, start func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue, busy := o.waiting[key]
	if busy {
		o.waiting[key] = append(queue, start)
		return false
	}
	if o.waiting == nil {
		o.waiting = map[string][]func(){}
	}
	o.waiting[key] = nil
	return true
}

// Done says that what was started last with an order key is done, and starts what is next.
func (o *Order) Done(key string) {
	if key == "" {
		return
	}
	if next := o.next(key); next != nil {
		next()
	}
}

func (o *Order) next(key string) func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.waiting[key]
	if len(queue) == 0 {
		delete(o.waiting, key)
		return nil
	}
	next := queue[0]
	queue[0] = nil
	o.waiting[key] = queue[1:]
	return next
}
