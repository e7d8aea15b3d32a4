package oncemill

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Announce says that calls of a scope are about to come, as when a worker starts. If the store does not know the scope,
// and its group had another handler within the policy's window, the log gets a warning: records are kept under the
// handler's name, and under a new one everything runs again. Announce asks the store in the background, once for each
// scope, and returns at once.
func (g *Guard) Announce(scope dedupstore.Scope) { g.scopes.announce(scope) }

// startsTogether is how long the handlers of a group may take to appear when it is deployed for the first time.
const startsTogether = 10 * time.Minute

// maybeRenamed decides whether a scope that is about to be used may be another one under a new name. It returns the one
// that was used last of those that it may be.
func maybeRenamed(
	scope dedupstore.Scope, uses []dedupstore.ScopeUse, window time.Duration, now time.Time,
) (old dedupstore.ScopeUse, doubtful bool) {
	for _, u := range uses {
		switch {
		case u.Scope == scope:
			return dedupstore.ScopeUse{}, false // it is known
		case u.Tenant != scope.Tenant || u.Group != scope.Group:
		case strings.HasPrefix(u.Handler, shadowPrefix) || ids.IsOfStep(u.Handler):
		case now.Sub(u.First) <= startsTogether: // a first deployment, or a warning has been given
		case now.Sub(u.Last) > window+noteScopesEvery: // it may have been used for so long since
		case !doubtful || u.Last.After(old.Last):
			old, doubtful = u, true
		}
	}
	return old, doubtful
}

// warnRenamed says so.
func warnRenamed(
	ctx context.Context, log *slog.Logger, scope dedupstore.Scope, old dedupstore.ScopeUse, window time.Duration,
	now time.Time,
) {
	log.WarnContext(ctx, fmt.Sprintf("oncemill: handler %s has no records in group %s; %s has, last used %s: if this "+
		"is a new name, everything within the window runs again",
		scope.Handler, scope.Group, old.Handler, ago(now.Sub(old.Last))),
		"tenant", scope.Tenant, "group", scope.Group, "handler", scope.Handler, "other", old.Handler,
		"other_used", old.Last, "window", window)
}

// ago is how long ago something was, in words. The store is told once an hour, so nothing finer is known.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "just now"
	case d < 2*time.Minute:
		return "1 minute ago"
	case d < 2*time.Hour:
		return fmt.Sprintf("%d minutes ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d hours ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}
