package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill"
)

// errClosed refuses to publish outputs after Close, when nobody would record the publication.
var errClosed = errors.New("consumer: Processor is closed")

// longestPublish bounds how long outputs may take to be published; then a redelivery publishes them. Only a message
// that is never settled takes so long, such as one that somebody swapped for a copy.
const longestPublish = 15 * time.Minute

// Watch keeps a publication's claim until acked is closed, which says that its messages are published, and then records
// that. When nacked is closed it gives them up to a redelivery. It returns at once. Use it in callers of ProcessOutputs
// that hand the messages on. It returns an error, and gives the messages up, if the Processor is closed: hand nothing
// on then.
func (p *Processor) Watch(ctx context.Context, d Delivery, publication *oncemill.Publication,
	acked, nacked <-chan struct{}) error {
	p.mu.Lock()
	open := !p.closing
	if open {
		p.watchers.Add(1)
	}
	p.mu.Unlock()
	if !open {
		publication.Abandon()
		return errClosed
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer p.watchers.Done()
		p.watch(ctx, d, publication, acked, nacked)
	}()
	return nil
}

func (p *Processor) watch(ctx context.Context, d Delivery, publication *oncemill.Publication,
	acked, nacked <-chan struct{}) {
	limit := time.NewTimer(longestPublish)
	defer limit.Stop()
	select {
	case <-acked:
		// The guard has logged an error loudly; the message is acknowledged, so there is nobody to return it to.
		_ = publication.Done()
		return
	case <-nacked:
		outputs := publication.Messages()
		p.log.WarnContext(ctx,
			"oncemill: outputs were not published: their message comes again without a run, and may hold up "+
				"others; the Router's log says why",
			"uuid", d.UUID, "topic", d.Topic, "to", outputs[0].Topic, "outputs", len(outputs))
	case <-p.closed:
		select {
		case <-acked: // at the same time
			_ = publication.Done()
			return
		default:
		}
	case <-limit.C:
		p.log.ErrorContext(ctx, "oncemill: message was neither acked nor nacked: a redelivery publishes its outputs",
			"uuid", d.UUID, "after", longestPublish)
	}
	publication.Abandon()
}

// Close waits until it is recorded that the outputs of all deliveries are published. Call it when their transport has
// stopped, as after a Router is closed, so that its last messages are settled. When ctx ends first, Close gives the
// rest up, to be published by redeliveries, and returns the context's error when what handlers and the store have still
// to do has ended: that may take a lease longer. Afterwards deliveries with outputs to publish are refused. Close also
// notes the duplicates that were counted last.
func (p *Processor) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.running.Wait()
		p.watchers.Wait()
		p.guard.Close()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		p.giveUp.Do(func() { close(p.closed) })
		<-ended
		return context.Cause(ctx)
	}
}
