package natsjs

import (
	"container/heap"
	"time"
)

// delays holds when delayed naks are due: until then the server counts their messages as pending.
type delays struct{ due dueHeap }

func (d *delays) add(due time.Time) { heap.Push(&d.due, due) }

// outstanding returns how many are not due.
func (d *delays) outstanding(now time.Time) int {
	for len(d.due) > 0 && !d.due[0].After(now) {
		heap.Pop(&d.due)
	}
	return len(d.due)
}

type dueHeap []time.Time

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(time.Time)) }

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
