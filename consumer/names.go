package consumer

import "github.com/oncemill/oncemill/dedupstore"

// Announce says that deliveries to a handler are about to come. If its name may be a new one for an old handler, the
// log gets a warning: see oncemill.Guard.Announce. Workers call it when they start. For other transports the first
// delivery does. It returns at once; without a name it does nothing.
func (p *Processor) Announce(handler string) {
	if handler != "" {
		p.guard.Announce(dedupstore.Scope{Tenant: p.config.Tenant, Group: p.config.Group, Handler: handler})
	}
}
