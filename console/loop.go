package console

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/internal/census"
	"github.com/oncemill/oncemill/internal/operate"
)

const (
	// share bounds what the loop asks of a server: after a page that took some time, it waits that many times as long.
	share = 15

	idleAfter   = time.Minute
	lookTimeout = 10 * time.Second

	findingsEvery   = 5 * time.Minute
	findingsRest    = 10 * time.Second // after a look, also if somebody asks
	findingsTimeout = time.Minute
	findingsSource  = "\x00findings"
)

var errRunning = errors.New("console: Run runs already")

// Run samples what live parts show, once for all streams, and does what was asked for. It blocks until its context
// ends, then ends all streams and returns nil. While nobody looks, it counts deliveries only. Without it, pages show
// lists and records, but neither figures nor live parts, and actions are refused.
func (c *Console) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errRunning
	}
	defer c.running.Store(false)
	c.asked.Store(time.Now().UnixMilli())
	var all sync.WaitGroup
	for i := range c.config.Stores {
		all.Go(func() { c.watchStore(ctx, i) })
	}
	for i := range c.config.Outboxes {
		all.Go(func() { c.watchOutbox(ctx, i) })
	}
	if c.config.Counters != nil {
		all.Go(func() { c.watchTraffic(ctx) })
	}
	if c.hasDoctor() {
		all.Go(func() { c.watchFindings(ctx) })
	}
	if c.config.Lag != nil {
		all.Go(func() { c.watchLag(ctx) })
	}
	for range mostAtOnce {
		all.Go(func() { c.work(ctx) })
	}
	beat := time.NewTicker(c.config.Every)
	defer beat.Stop()
	for ctx.Err() == nil {
		c.publish(false)
		select {
		case <-beat.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
	c.publish(true)
	return nil
}

// idle reports whether nobody has looked for a while.
func (c *Console) idle() bool {
	return c.streams.Load() == 0 && time.Since(time.UnixMilli(c.asked.Load())) > idleAfter
}

// seen is what was sampled last. What its pointers and slices lead to never changes.
type seen struct {
	Stores   []*storeSeen
	Outboxes []*outboxSeen
	Traffic  *traffic      // nil: not configured, or not known yet
	Findings *findingsSeen // as above
	Lag      *lagSeen      // as above
}

func sum[T any](all []T, of func(T) int) (n int) {
	for _, one := range all {
		n += of(one)
	}
	return n
}

// Failed sums the failures of all stores that are not archived.
func (s *seen) Failed() int {
	return sum(s.Stores, func(o *storeSeen) int { return o.Failures.Failed() })
}

// Unknown sums the unknown outcomes of all stores that are not archived.
func (s *seen) Unknown() int {
	return sum(s.Stores, func(o *storeSeen) int { return o.Failures.Unknown })
}

// Running sums the records whose handlers run.
func (s *seen) Running() int { return sum(s.Stores, func(o *storeSeen) int { return o.Running.N }) }

// OldestClaim is when the oldest run was claimed that has not ended.
func (s *seen) OldestClaim() (oldest time.Time) {
	for _, one := range s.Stores {
		for _, r := range one.Running.Oldest {
			if oldest.IsZero() || r.Claimed.Before(oldest) {
				oldest = r.Claimed
			}
		}
	}
	return oldest
}

// Pending sums the rows of all outboxes that are not published.
func (s *seen) Pending() int {
	return sum(s.Outboxes, func(o *outboxSeen) int { return o.Stats.Pending })
}

// Dead sums the dead rows of all outboxes.
func (s *seen) Dead() int { return sum(s.Outboxes, func(o *outboxSeen) int { return o.Stats.Dead }) }

// Delay is how long the oldest row of all outboxes has been due.
func (s *seen) Delay() (oldest time.Duration) {
	for _, one := range s.Outboxes {
		oldest = max(oldest, one.Stats.Oldest)
	}
	return oldest
}

// Behind reports whether an outbox has a row that has been due for long.
func (s *seen) Behind() bool { return s.Delay() > time.Minute }

// Problems say which sources did not answer.
func (s *seen) Problems() (all []health.Finding) {
	add := func(subject, problem string) {
		if problem != "" {
			all = append(all, health.Finding{Severity: health.Loses, Subject: subject, Finding: problem})
		}
	}
	for _, one := range s.Stores {
		add("store "+one.Name, one.Problem)
	}
	for _, one := range s.Outboxes {
		add("outbox "+one.Name, one.Problem)
	}
	if s.Traffic != nil {
		add("counters of deliveries", s.Traffic.Problem)
	}
	if s.Findings != nil {
		add("doctor", s.Findings.Problem)
	}
	if s.Lag != nil {
		add("lag of consumers", s.Lag.Problem)
	}
	return all
}

// Noted sums records, and the duplicates that are noted beside them.
func (s *seen) Noted() (sum census.Scope) {
	for _, one := range s.Stores {
		sum.N += one.Counts.Sum.N
		sum.Duplicates += one.Counts.Sum.Duplicates
	}
	return sum
}

// Scope is the traffic of a scope; nil if there is none.
func (s *seen) Scope(group, handler string) *scopeTraffic {
	if s.Traffic == nil {
		return nil
	}
	of, ok := s.Traffic.scopes[group+"\x00"+handler]
	if !ok {
		return nil
	}
	return &of
}

// A findingsSeen is what Config.Findings returned.
type findingsSeen struct {
	All     []health.Finding
	At      time.Time
	Problem string
}

// see changes what was sampled last.
func (c *Console) see(change func(*seen)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seen
	s.Stores, s.Outboxes = slices.Clone(s.Stores), slices.Clone(s.Outboxes)
	change(&s)
	c.seen = s
}

// A snapshot is what live parts show at a time.
type snapshot struct {
	seen
	At   time.Time
	next chan struct{} // closed when there is a newer one
	last bool          // the loop has ended

	mu    sync.Mutex
	parts map[string]*part
}

// A part is a live part as HTML, made once for all streams.
type part struct {
	once sync.Once
	html []byte
	err  error
}

func newSnapshot(s seen, at time.Time) *snapshot {
	return &snapshot{seen: s, At: at, next: make(chan struct{}), parts: map[string]*part{}}
}

// part returns a part that is made once.
func (s *snapshot) part(name string, do func() ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	p := s.parts[name]
	if p == nil {
		p = &part{}
		s.parts[name] = p
	}
	s.mu.Unlock()
	p.once.Do(func() { p.html, p.err = do() })
	return p.html, p.err
}

func (c *Console) now() *snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}

func (c *Console) publish(last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.latest
	c.latest = newSnapshot(c.seen, time.Now())
	c.latest.last = last
	close(before.next)
}

// pause waits, and reports whether it was woken.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) (woken bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-wake:
		return true
	}
	return false
}

// hurry makes a source look now, if there is such a source.
func (c *Console) hurry(source string) {
	select {
	case c.wake[source] <- struct{}{}:
	default:
	}
}

// hasDoctor reports whether there is anything to look at.
func (c *Console) hasDoctor() bool {
	return c.config.Findings != nil || len(c.config.Stores)+len(c.config.Outboxes) > 0
}

// findings looks at stores, outboxes and what else is configured. One that does not answer hides no other.
func (c *Console) findings(ctx context.Context) (all []health.Finding, err error) {
	add := func(found []health.Finding, failed error) { all, err = append(all, found...), errors.Join(err, failed) }
	for _, s := range c.config.Stores {
		_, found, err := operate.CheckStore(ctx, "store "+s.Name, s.Inspector)
		add(found, err)
	}
	for _, o := range c.config.Outboxes {
		add(operate.CheckOutbox(ctx, "outbox "+o.Name, o.Inspector))
	}
	if c.config.Findings != nil {
		add(c.config.Findings(ctx))
	}
	return all, err
}

func (c *Console) watchFindings(ctx context.Context) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, findingsTimeout)
		all, err := c.findings(within)
		cancel()
		found := &findingsSeen{All: all, At: time.Now(), Problem: problemOf(err)}
		c.see(func(s *seen) { s.Findings = found })
		asked := false
		for ended := time.Now(); ctx.Err() == nil; {
			asked = pause(ctx, c.config.Every, c.wake[findingsSource]) || asked
			if rested := time.Since(ended); asked && rested > findingsRest || rested > findingsEvery && !c.idle() {
				break
			}
		}
	}
}

// A lagSeen is what Config.Lag returned.
type lagSeen struct {
	All     []health.Lag
	Waiting int64     // in sum
	Sums    []float64 // over time, oldest first
	At      time.Time
	Problem string
}

// Grows reports whether more wait than some minutes ago, and than at any time between.
func (l *lagSeen) Grows() bool {
	n := len(l.Sums)
	return n > 1 && l.Sums[n-1] > 0 && l.Sums[n-1] >= slices.Max(l.Sums) && l.Sums[n-1] > l.Sums[max(0, n-lagGrows)]
}

const (
	lagEvery = 10 * time.Second
	lagGrows = 18 // looks: three minutes
)

func (c *Console) watchLag(ctx context.Context) {
	shown := lagSeen{}
	for ctx.Err() == nil {
		if !c.idle() {
			within, cancel := context.WithTimeout(ctx, lookTimeout)
			all, err := c.config.Lag(within)
			cancel()
			if shown.Problem = problemOf(err); err == nil {
				shown.All, shown.Waiting, shown.At = all, 0, time.Now()
				for _, l := range all {
					shown.Waiting += l.Waiting
				}
				shown.Sums = slices.Clone(shown.Sums[max(0, len(shown.Sums)+1-mostBeats):])
				shown.Sums = append(shown.Sums, float64(shown.Waiting))
			}
			now := shown
			c.see(func(s *seen) { s.Lag = &now })
		}
		pause(ctx, max(lagEvery, c.config.Every), nil)
	}
}

func (c *Console) watchTraffic(ctx context.Context) {
	var m meter
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, lookTimeout)
		counters, err := c.config.Counters(within)
		cancel()
		if err == nil {
			m.add(counters, time.Now())
		}
		view := m.view(err)
		c.see(func(s *seen) { s.Traffic = view })
		pause(ctx, c.config.Every, nil)
	}
}

func problemOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
