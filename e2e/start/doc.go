// Package start plays the README and the start pages as a reader would. It pastes their programs, runs their commands,
// and compares what they print with what the page shows.
package start
