package kit

import (
	"math"
	"slices"
	"time"
)

// Median is the middle one of the values, or the mean of the middle two; 0 without any.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Percentile sorts the durations and returns the nearest rank: the smallest one that at least the given share of them,
// from 0 to 1, does not exceed. It returns 0 without any.
func Percentile(d []time.Duration, share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	rank := int(math.Ceil(share*float64(len(d)) - 1e-9)) // .55 of 100 is 55, not 55.00000000000001
	return d[max(rank, 1)-1]
}
