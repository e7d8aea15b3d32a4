package dynamostore

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/oncemill/oncemill/dedupstore"
)

// A clock compares this host's clock with the endpoint's, which dates its replies.
type clock struct {
	bound time.Duration
	last  atomic.Pointer[offset] // of the last reply that tells as much; nil: there was none
}

// An offset is how far the endpoint's clock is ahead of this host's, at least and at most.
type offset struct {
	least, most time.Duration
	at          time.Time // when the reply came
	wall        time.Time // by the wall clock
}

// setSince reports whether somebody has set the wall clock by more than a bound since the reply came.
func (o *offset) setSince(now time.Time, bound time.Duration) bool {
	return (now.Round(0).Sub(o.wall) - now.Sub(o.at)).Abs() > bound
}

// Slow replies tell little. They leave what a quicker one told in the last keepFor, unless they contradict it.
const (
	keepFor = 10 * time.Second
	slower  = 100 * time.Millisecond
)

// better reports whether to believe o although a later reply tells less, which is nil if it tells nothing.
func (o *offset) better(later *offset) bool {
	switch {
	case o == nil || time.Since(o.at) > keepFor:
		return false
	case later == nil:
		return true
	}
	contradicts := later.least > o.most || later.most < o.least // a clock was set
	return !contradicts && later.most-later.least > o.most-o.least+slower
}

// dateUnit is what the Date of a reply counts in.
const dateUnit = time.Second

// learn takes the Date of a reply to what was sent then. A reply without one tells nothing.
func (c *clock) learn(m middleware.Metadata, sent time.Time) {
	date, dated := awsmiddleware.GetServerTime(m)
	came, timed := awsmiddleware.GetResponseAt(m)
	if !dated || !timed {
		if !c.last.Load().better(nil) {
			c.last.Store(&offset{})
		}
		return
	}
	c.compare(date, sent, came)
}

// refused takes the Date of a refusal, as learn does.
func (c *clock) refused(err error, sent time.Time) {
	came := time.Now()
	var reply *smithyhttp.ResponseError
	if !errors.As(err, &reply) || reply.HTTPResponse() == nil {
		return
	}
	if date, err := http.ParseTime(reply.HTTPResponse().Header.Get("Date")); err == nil {
		c.compare(date, sent, came)
	}
}

// compare takes what the endpoint's clock showed between two times of this host's wall clock.
func (c *clock) compare(date, sent, came time.Time) {
	now := time.Now()
	found := &offset{date.Sub(came.Round(0)), date.Add(dateUnit).Sub(sent.Round(0)), now, now.Round(0)}
	for before := c.last.Load(); !before.better(found) && !c.last.CompareAndSwap(before, found); {
		before = c.last.Load()
	}
}

// right reports that there was a reply, that it did not show that the clocks are too far apart, and that nobody has set
// this host's clock since.
func (c *clock) right() bool {
	o := c.last.Load()
	return o != nil && c.wrong() == nil && !o.setSince(time.Now(), c.bound)
}

// wrong says how far the clocks are apart. Nil: no reply showed that it is too far.
func (c *clock) wrong() error {
	o := c.last.Load()
	if o == nil || o.least <= c.bound && o.most >= -c.bound {
		return nil
	}
	how, by := "ahead of", -o.most
	if by < 0 {
		how, by = "behind", o.least
	}
	return &dedupstore.SetupError{
		Package: "dynamostore", Subject: "the clock of this host",
		Problem: fmt.Sprintf("is %v or more %s the endpoint's, and Config.MaxSkew is %v: no claim or change is "+
			"made, because it would end leases of others early, or too late; set the clock (NTP)",
			by.Round(time.Millisecond), how, c.bound),
	}
}
