// Package filequeue is a queue in a file, and a consumer.Source of it to copy from: see docs/sources.md. One process at
// a time consumes a file.
package filequeue

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// A Queue is a file of lines. A line is a message, or says that an earlier line has ended.
type Queue struct{ file *os.File }

type line struct {
	Message *producer.Message `json:",omitempty"`
	Ended   int64             // where the line of a message begins that has ended
}

// Open opens a queue, and makes the file if there is none.
func Open(path string) (*Queue, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Queue{file}, nil
}

// Close closes the file.
func (q *Queue) Close() error { return q.file.Close() }

// Publish appends a message.
func (q *Queue) Publish(m producer.Message) error { return q.append(line{Message: &m}) }

// append begins a line of its own: a crash or a full disk may have left a part of another, which is skipped then.
func (q *Queue) append(l line) error {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = fmt.Fprintf(q.file, "\n%s\n", text) // one write, so that no other comes between
	}
	if err != nil {
		return err
	}
	return q.file.Sync()
}

// pending reads the lines from an offset on. It adds messages of a topic, by where they begin, and takes away what has
// ended. It returns where the next line will begin.
func (q *Queue) pending(topic string, from int64, messages map[int64]*pending) (next int64, err error) {
	r := bufio.NewReader(io.NewSectionReader(q.file, from, 1<<62-from))
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return from, nil // what there is of a line is read again, with the rest of it
		} else if err != nil {
			return from, err
		}
		var l line
		switch err := json.Unmarshal(text, &l); {
		case err != nil: // torn
		case l.Message == nil:
			delete(messages, l.Ended)
		case l.Message.Topic == topic:
			messages[from] = &pending{Message: l.Message}
		}
		from += int64(len(text))
	}
}

type pending struct {
	*producer.Message
	due     time.Time
	running bool
}

// A Source is a consumer.Source of a queue.
type Source struct {
	Queue       *Queue
	Once        *consumer.Processor
	MaxInFlight int           // calls at once
	Grace       time.Duration // how long calls may go on when Run is to end
}

// Processor returns what guards the deliveries.
func (s *Source) Processor() *consumer.Processor { return s.Once }

// Check reads the queue.
func (s *Source) Check(_ context.Context, topic string) error {
	_, err := s.Queue.pending(topic, 0, map[int64]*pending{})
	return err
}

// Run hands messages over until ctx ends, and waits for their calls. There is nothing to give back: what has not ended
// in the file comes again in the next Run.
func (s *Source) Run(ctx context.Context, topic string, handle consumer.SourceHandler) (err error) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the end of ctx is not that of the calls
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.Grace, cancel) })()
	type decided struct {
		at int64
		consumer.Decision
	}
	decisions := make(chan decided, s.MaxInFlight) // with room for all, so that done never waits
	waits := oncemill.NewWaitLimit(s.MaxInFlight / 2)
	messages, inFlight, next := map[int64]*pending{}, 0, int64(0)
	for draining := false; !draining || inFlight > 0; draining = draining || ctx.Err() != nil || err != nil {
		if !draining {
			next, err = s.Queue.pending(topic, next, messages)
		}
		for _, at := range slices.Sorted(maps.Keys(messages)) {
			m := messages[at]
			if draining || m.running || inFlight == s.MaxInFlight || time.Now().Before(m.due) {
				continue
			}
			m.running = true
			inFlight++
			header := producer.Header{producer.HeaderID: m.ID} // a new one, which is the handler's to change
			maps.Copy(header, m.Header)
			handle(work, consumer.Delivery{ // without Count: nobody counts over restarts
				Topic: topic, Origin: s.Queue.file.Name(), Position: strconv.FormatInt(at, 10), Header: header,
				Payload: m.Payload, WaitLimit: waits, Stopping: ctx.Done(),
			}, func(d consumer.Decision) { decisions <- decided{at, d} })
		}
		select {
		case d := <-decisions:
			inFlight--
			m := messages[d.at]
			m.running, m.due = false, time.Now().Add(d.Delay)
			switch d.Action {
			case consumer.Ack, consumer.Reject:
				m.due = time.Now().Add(time.Minute) // if the file is full: the guard knows what was done
				_ = s.Queue.append(line{Ended: d.at})
			case consumer.Leave:
				m.due = time.Now().Add(s.Once.Config().Policy.Lease) // its other owner has as long
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	return err
}
