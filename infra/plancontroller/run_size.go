package plancontroller

import "sync"

// largeRun is the number of resources from which it pays to release memory at once. Left alone, the Go
// runtime does that within minutes.
const largeRun = 10_000

// runSize counts the resources of a plan or an apply, and reports once if it turns out to be large.
type runSize struct {
	onLargeRun func(retained bool) (done func()) // may be nil
	retained   bool
	begun      sync.Once
	done       func()
}

// observe records the number of resources so far. It is safe for concurrent use.
func (s *runSize) observe(resources int64) {
	if resources >= largeRun && s.onLargeRun != nil {
		s.begun.Do(func() { s.done = s.onLargeRun(s.retained) })
	}
}

// finish is called when no more resources can be observed.
func (s *runSize) finish() {
	if s.done != nil {
		s.done()
	}
}
