package main

import (
	"slices"
	"time"
)

// samples are durations of single operations.
type samples struct{ all []time.Duration }

func (s *samples) add(d ...time.Duration) { s.all = append(s.all, d...) }

// ms returns the percentile p in milliseconds, 0 without samples.
func (s *samples) ms(p int) float64 {
	if len(s.all) == 0 {
		return 0
	}
	sorted := slices.Clone(s.all)
	slices.Sort(sorted)
	return float64(sorted[(len(sorted)-1)*p/100]) / float64(time.Millisecond)
}

// median returns the median, 0 without values.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Clone(v)
	slices.Sort(sorted)
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
