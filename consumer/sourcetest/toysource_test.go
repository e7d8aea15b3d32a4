package sourcetest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
)

type consumerSource = consumer.Source

// A toySource consumes a toyBroker.
type toySource struct {
	*toyBroker
	config Member
}

func newToySource(b *toyBroker, m Member) *toySource {
	if m.MaxInFlight == 0 {
		m.MaxInFlight = 16
	}
	return &toySource{b, m}
}

func (s *toySource) Processor() *consumer.Processor {
	if s.breaks("another-processor") {
		return nil
	}
	return s.config.Once
}

func (s *toySource) Check(context.Context, string) error { return nil }

// A toyRun is one call of Run.
type toyRun struct {
	*toySource
	handle   consumer.SourceHandler
	waits    *oncemill.WaitLimit
	draining chan struct{}
	locked   chan struct{}
	tasks    sync.WaitGroup

	mu       sync.Mutex
	inFlight map[int]toyDelivery // by token
	queues   map[string][]func() // what starts when those before it are settled
	kept     int                 // retries that wait here
}

func (s *toySource) Run(ctx context.Context, _ string, handle consumer.SourceHandler) error {
	r := &toyRun{
		toySource: s, handle: handle, draining: make(chan struct{}), locked: make(chan struct{}, 1),
		inFlight: map[int]toyDelivery{},
		queues:   map[string][]func(){}, waits: oncemill.NewWaitLimit(max(1, s.config.MaxInFlight/2)),
	}
	if s.breaks("waiting-takes-all-places") {
		r.waits = nil
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if s.breaks("contexts-end-with-run") {
		work, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	beating, stopBeating := context.WithCancel(work)
	var beats sync.WaitGroup
	beats.Go(func() { r.beat(beating) })
	for !r.ends(ctx) {
		if !r.room() {
			<-after(time.Millisecond)
			continue
		}
		d, ok := s.fetch(s)
		switch {
		case ok:
			r.receive(work, d)
		case s.breaks("ends-with-its-broker") && s.isDown():
			stopBeating()
			return errDown
		default:
			<-after(5 * time.Millisecond)
		}
	}
	close(r.draining)
	if s.breaks("leaks") {
		go func() { <-s.leaks }()
	}
	if s.breaks("does-not-wait") {
		stopBeating()
		return nil
	}
	if !s.breaks("no-grace") {
		grace := s.config.Grace
		if s.breaks("short-grace") {
			grace /= 2
		}
		time.AfterFunc(grace, cancel)
	}
	r.tasks.Wait()
	stopBeating()
	beats.Wait()
	return nil
}

// ends reports whether Run is to fetch nothing more.
func (r *toyRun) ends(ctx context.Context) bool {
	if r.breaks("handles-all-that-is-left") {
		r.toyBroker.mu.Lock()
		defer r.toyBroker.mu.Unlock()
		return ctx.Err() != nil && len(r.messages) == 0
	}
	return ctx.Err() != nil
}

func (s *toySource) isDown() bool {
	s.toyBroker.mu.Lock()
	defer s.toyBroker.mu.Unlock()
	return s.down
}

func (r *toyRun) room() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := r.config.MaxInFlight
	if r.breaks("one-at-a-time") {
		most = 1
	}
	if r.breaks("stops-at-a-retry") && r.kept > 0 {
		return false
	}
	return len(r.inFlight) < most || r.breaks("too-many-at-once")
}

// beat tells the broker that messages are worked on.
func (r *toyRun) beat(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-after(r.ackWait / 4):
		}
		if r.breaks("no-heartbeats") {
			continue
		}
		r.mu.Lock()
		working := maps.Clone(r.inFlight)
		r.mu.Unlock()
		for _, d := range working {
			_ = r.tell(r.toySource, d, func(m *toyMessage) bool {
				m.expires = time.Now().Add(r.ackWait)
				return false
			})
		}
	}
}

// receive takes a message. It begins when those of its key before it are settled.
func (r *toyRun) receive(ctx context.Context, d toyDelivery) {
	r.mu.Lock()
	r.inFlight[d.token] = d
	start := func() { r.begin(ctx, d) }
	r.tasks.Add(1)
	key := d.Key
	if r.breaks("order-ignored") {
		key = ""
	}
	queue, behind := r.queues[key]
	if key != "" {
		r.queues[key] = append(queue, start)
	}
	r.mu.Unlock()
	if !behind || key == "" {
		start()
	}
}

// begin hands a message over.
func (r *toyRun) begin(ctx context.Context, d toyDelivery) {
	if r.isDraining() {
		r.giveBack(d, 0)
		return
	}
	header := maps.Clone(d.header)
	if r.breaks("headers-are-shared") {
		header = d.header
	}
	delivery := consumer.Delivery{
		Topic: "orders", Header: header, Payload: d.Payload, Count: d.count, WaitLimit: r.waits, Stopping: r.draining,
	}
	if r.breaks("names-the-handler") {
		delivery.Handler = "charge"
	}
	if r.breaks("counts-from-zero") {
		delivery.Count = 7
	}
	hand := func() { r.handle(ctx, delivery, func(decision consumer.Decision) { r.carryOut(ctx, d, decision) }) }
	r.lock()
	defer r.unlock()
	hand()
}

// lock is for a source that hands over under the lock that it needs for decisions. It is no mutex: one that waits for a
// mutex stops virtual time.
func (r *toyRun) lock() {
	if r.breaks("hands-over-under-a-lock") {
		select {
		case r.locked <- struct{}{}:
		case <-r.leaks:
		}
	}
}

func (r *toyRun) unlock() {
	if r.breaks("hands-over-under-a-lock") {
		select {
		case <-r.locked:
		case <-r.leaks:
		}
	}
}

func (r *toyRun) carryOut(ctx context.Context, d toyDelivery, decision consumer.Decision) {
	r.lock()
	defer r.unlock()
	action := decision.Action
	switch {
	case r.breaks("acks-everything"), r.breaks("rejects-by-ack-of-retries") && action == consumer.RetryLater:
		action = consumer.Ack
	case r.breaks("leaves-by-ack") && action == consumer.Leave:
		action = consumer.Ack
	case r.breaks("rejections-come-again") && action == consumer.Reject:
		action = consumer.RetryLater
	case r.breaks("forgets-acks") && action == consumer.Ack:
		action = consumer.Leave
	case r.breaks("drops-decisions-of-the-drain") && r.isDraining():
		action = consumer.Leave
	}
	switch action {
	case consumer.Ack, consumer.Reject:
		r.mu.Lock()
		delete(r.inFlight, d.token) // no heartbeat overtakes the ack
		r.mu.Unlock()
		r.ack(ctx, d)
	case consumer.RetryLater:
		r.retry(ctx, d, decision)
	case consumer.Leave:
		r.settled(d)
	}
}

// ack ends a message. It tries again while the broker is down.
func (r *toyRun) ack(ctx context.Context, d toyDelivery) {
	err := r.tell(r.toySource, d, func(*toyMessage) bool { return true })
	if err == nil || r.breaks("acks-once") {
		r.settled(d)
		return
	}
	go func() {
		<-after(10 * time.Millisecond)
		r.ack(ctx, d)
	}()
}

// retry keeps a message here if it must keep its place or its deliveries, and there is room; else it gives it back.
func (r *toyRun) retry(ctx context.Context, d toyDelivery, decision consumer.Decision) {
	delay := max(decision.Delay, time.Millisecond)
	if r.breaks("retries-at-once") {
		delay = time.Millisecond
	}
	r.mu.Lock()
	keep := d.Key != "" || r.kept < max(1, r.config.MaxInFlight/4) || decision.Keep && r.breaks("keeps-without-bound")
	keep = keep && !r.isDraining() && !r.breaks("keeps-nothing") && !r.breaks("gives-back-what-is-anothers")
	if keep {
		r.kept++
	}
	r.mu.Unlock()
	if !keep {
		if d.Key != "" && r.isDraining() && !r.breaks("gives-back-behind-others") {
			delay = 0
		}
		r.giveBack(d, delay)
		return
	}
	go func() {
		draining := r.draining
		if r.breaks("drain-waits-for-retries") {
			draining = nil
		}
		due := time.Now().Add(delay)
		select {
		case <-after(delay):
		case <-draining:
		case <-ctx.Done():
		}
		r.mu.Lock()
		r.kept--
		r.mu.Unlock()
		d.count++
		if left := time.Until(due); left > 0 && !r.breaks("drain-waits-for-retries") {
			if d.Key != "" && !r.breaks("gives-back-behind-others") {
				left = 0 // it keeps its place
			}
			r.giveBack(d, left)
			return
		}
		r.begin(ctx, d)
	}()
}

func (r *toyRun) giveBack(d toyDelivery, delay time.Duration) {
	r.mu.Lock()
	delete(r.inFlight, d.token)
	r.mu.Unlock()
	err := r.tell(r.toySource, d, func(m *toyMessage) bool {
		m.holder, m.due = nil, time.Now().Add(delay)
		return r.breaks("loses-what-it-gives-back")
	})
	_ = err // then the ack deadline gives it back
	r.settled(d)
}

// settled begins what follows a message.
func (r *toyRun) settled(d toyDelivery) {
	r.mu.Lock()
	delete(r.inFlight, d.token)
	var next func()
	if queue := r.queues[d.Key]; d.Key != "" && len(queue) > 0 {
		queue = queue[1:]
		r.queues[d.Key] = queue
		if len(queue) == 0 {
			delete(r.queues, d.Key)
		} else {
			next = queue[0]
		}
	}
	r.mu.Unlock()
	if next != nil {
		go next()
	}
	r.tasks.Done()
}

func (r *toyRun) isDraining() bool {
	select {
	case <-r.draining:
		return true
	default:
		return false
	}
}

// batches runs a source whose messages are handled two at a time.
func (b *toyBroker) batches(ctx context.Context, m Member, handle func(context.Context, []string) []error) error {
	s := newToySource(b, m)
	for ctx.Err() == nil {
		var batch []toyDelivery
		var ids []string
		for len(batch) < 4 {
			d, ok := b.fetch(s)
			if !ok {
				break
			}
			batch, ids = append(batch, d), append(ids, d.ID)
		}
		if len(batch) == 0 {
			<-after(time.Millisecond)
			continue
		}
		errs := handle(ctx, ids)
		for i, d := range batch {
			err := errs[i]
			if b.breaks("first-error-steers-the-batch") {
				err = errs[0]
			}
			_ = b.tell(s, d, func(m *toyMessage) bool {
				m.holder = nil
				return err == nil
			})
		}
	}
	return nil
}
