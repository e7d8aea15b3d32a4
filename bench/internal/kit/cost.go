package kit

import (
	"context"
	"time"
)

// Figures of programs that measure messages.
const (
	Rate   = "msgs/s"
	AllCPU = "all µs/msg"
)

// Servers are those whose CPU counts, beside that of this process.
type Servers []Server

// A Server has a name, and tells the time that it has used.
type Server struct {
	Name string
	CPU  func(context.Context) (time.Duration, error)
}

// Spent is what this process has used so far, and each of the servers.
type Spent struct {
	Usage
	servers []time.Duration
}

// Spent returns what was used up to now.
func (s Servers) Spent(ctx context.Context) (spent Spent, err error) {
	if err := ctx.Err(); err != nil {
		return spent, err
	}
	spent.servers = make([]time.Duration, len(s))
	for i, server := range s {
		if spent.servers[i], err = server.CPU(ctx); err != nil {
			return spent, err
		}
	}
	spent.Usage, err = Used()
	return spent, err
}

// Figures are the CPU that each of so many messages cost this process, each server, and all of them. The ratio of this
// process to the servers hardly changes with the machine and its load: each message asks the same of the servers.
func (s Servers) Figures(before, after Spent, messages int) []Figure {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(messages) }
	client := after.CPU - before.CPU
	all := client
	figures := []Figure{{Name: "client µs/msg", Value: micros(all)}}
	for i, server := range s {
		used := after.servers[i] - before.servers[i]
		figures = append(figures, Figure{Name: server.Name + " µs/msg", Value: micros(used)})
		all += used
	}
	return append(figures, Figure{Name: AllCPU, Value: micros(all)},
		Figure{Name: "client/servers", Value: float64(client) / float64(max(all-client, 1))})
}

// Cost measures work on so many messages: their rate, and what each of them costs everybody.
func (s Servers) Cost(ctx context.Context, messages int, work func() error) ([]Figure, error) {
	before, err := s.Spent(ctx)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := work(); err != nil {
		return nil, err
	}
	elapsed := time.Since(begun)
	after, err := s.Spent(ctx)
	if err != nil {
		return nil, err
	}
	n := float64(messages)
	figures := append([]Figure{{Name: Rate, Value: n / elapsed.Seconds()}}, s.Figures(before, after, messages)...)
	return append(figures, Figure{Name: "allocs/msg", Value: float64(after.Mallocs-before.Mallocs) / n}), nil
}
