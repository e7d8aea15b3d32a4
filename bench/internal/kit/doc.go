// Package kit is what the programs of this module share: flags, rounds, tables, and servers of their own.
//
// Guarantees:
//
//   - Variants take turns, round after round, in an order that changes with each round.
//   - A figure is the median over the rounds. A ratio is the median of the ratios within each round.
//   - Servers run on free loopback ports and are stopped when the program ends, also by Ctrl-C. On Linux they die with
//     the program however it ends.
//   - Tables go to standard output as Markdown, then a line `ratio NAME X` or `value NAME X` for each result.
//     Everything else goes to standard error.
//
// Do not compare figures of different machines, or of different runs.
package kit
