// Package start plays the README and docs/start.md as a reader would: it pastes their programs, runs their commands, and
// compares what is printed with what the page shows.
package start
