// Package sim runs the production code through histories that follow from a seed: messages, processes that die, a store
// and a broker that lie. After each event it looks at what docs/guarantees.md promises. A seed that fails is printed,
// made smaller, and makes the same log when it is run again.
//
// A history runs in a bubble of virtual time (testing/synctest). The production code meets the rest of the world at a
// border: operations of the store, calls of handlers, publishes, decisions. Each call at the border stands still there
// until one event, of a heap that is ordered by time, lets it go on. Between two events all goroutines come to rest.
// So the order in which goroutines run changes nothing at the border.
//
// What is drawn follows from the seed and from the name of what it is drawn for, such as "p1.2 claim k3 #4". So a fault
// can be left out, and the others stay: that is how a history is made smaller. Owner tokens are random all the same. They
// are compared and nothing else, and the log does not have them.
//
// Only driver.go knows the API of the engine. Everything else knows the contracts of stores, publishers and outboxes.
package sim
