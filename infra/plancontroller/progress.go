package plancontroller

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// reportInterval is the least time between two progress updates of a status.
	reportInterval = time.Second
	// rateWindow is the time over which the current rate is measured.
	rateWindow = time.Minute
)

// rateEstimator measures how fast a plan or an apply advances.
type rateEstimator struct {
	samples []sample
}

type sample struct {
	at   time.Time
	done int64
}

// progress takes a sample and returns the progress to be shown in a status.
func (p *rateEstimator) progress(now time.Time, done, total int64) v1alpha1.Progress {
	p.samples = append(p.samples, sample{now, done})
	for len(p.samples) > 2 && now.Sub(p.samples[0].at) > rateWindow {
		p.samples = p.samples[1:]
	}
	out := v1alpha1.Progress{Done: done, Total: total}
	first := p.samples[0]
	took := now.Sub(first.at)
	if took <= 0 || done <= first.done {
		return out
	}
	rate := float64(done-first.done) / took.Minutes()
	out.PerMinute = int64(rate)
	if total > done {
		out.Remaining = &metav1.Duration{Duration: time.Duration(float64(total-done) / rate * float64(time.Minute)).Round(time.Second)}
	}
	return out
}

// reporter writes progress while something runs, at most once per reportInterval. Callers of set never wait
// for the API.
type reporter[T any] struct {
	mu     sync.Mutex
	latest *T
}

func (r *reporter[T]) set(now T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = &now
}

func (r *reporter[T]) take() *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.latest
	r.latest = nil
	return out
}

// start writes until stop is called. stop waits for a write in flight.
func (r *reporter[T]) start(ctx context.Context, c clock.WithTicker, write func(context.Context, T)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := c.NewTicker(reportInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
				if now := r.take(); now != nil {
					write(ctx, *now)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}
