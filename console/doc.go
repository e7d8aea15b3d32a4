// Package console is the web console: what happened to messages, what failed, and how to mend it.
//
//	c, err := console.New(console.Config{Stores: []console.Store{{Name: "records", Inspector: store}}})
//	mux.Handle("/console/", c.Handler()) // any prefix
//	go c.Run(ctx)                        // samples for all live streams, and does what was asked for
//
// # Routes
//
// The last segment of the path is the route, and all links are relative. So the Handler works under any prefix, with
// http.StripPrefix or without, and behind a proxy that strips one.
//
//	GET  …/             Overview
//	GET  …/messages     Messages: in, id, state, tenant, group, handler, reason, since, before, pattern
//	GET  …/message      Message: in, key
//	GET  …/failures     Failures by reason, and dead letters: in, letters
//	GET  …/letter       a dead letter: in, at
//	GET  …/outbox       Outbox: in, state, topic, id
//	GET  …/health       Health
//	GET  …/log          Log: who changed what
//	GET  …/plan         what an action would change: id
//	GET  …/task         how far an action is, and how each record ended: id
//	GET  …/live         server-sent events: screen, in, id
//	GET  …/console.css  …/console.js  …/console.svg
//	POST …/plan         makes a plan; changes nothing
//	POST …/act          does what a plan says
//	POST …/stop         ends an action before it has done all
//	POST …/refresh      counts failures, or looks for findings, now
//
// "in" names a store, an outbox or a topic of dead letters; without it the first one is meant.
//
// # Rights
//
// The zero Config shows nothing: see [Config.Authorize]. An action is a POST with
// a token that is bound to a cookie, from the console's own origin. It begins with a plan, which shows what would
// change. Every action is told to [Config.Audit].
package console
