package syncer

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// leavingPods are the addresses of an object's pods that are about to stop.
type leavingPods struct {
	addresses []string
	until     time.Time // zero: until they are set again
}

// setLeaving records which addresses of an object's pods leave the endpoints of exported Services, until a time if it is not
// zero, and has those Services reported.
func (w *endpointWatches) setLeaving(binding types.NamespacedName, addresses []string, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.leaving[binding]
	if len(addresses) == 0 {
		delete(w.leaving, binding)
	} else {
		if w.leaving == nil {
			w.leaving = map[types.NamespacedName]leavingPods{}
		}
		w.leaving[binding] = leavingPods{addresses, until}
	}
	if slices.Equal(was.addresses, addresses) {
		return
	}
	for service := range w.watches {
		if service.Namespace == binding.Namespace {
			w.onChange(service)
		}
	}
}

// expire forgets the addresses of an object whose time is over.
func (w *endpointWatches) expire(binding types.NamespacedName, now time.Time) {
	w.mu.Lock()
	pods, leave := w.leaving[binding]
	w.mu.Unlock()
	if leave && !now.Before(pods.until) {
		w.setLeaving(binding, nil, time.Time{})
	}
}

// leavingOf returns the addresses of an object's pods that are about to stop. They must not be changed.
func (w *endpointWatches) leavingOf(binding types.NamespacedName) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaving[binding].addresses
}

// leavingIn returns the addresses of pods of a namespace that are about to stop.
func (w *endpointWatches) leavingIn(namespace string) map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]bool{}
	for binding, pods := range w.leaving {
		if binding.Namespace != namespace {
			continue
		}
		for _, a := range pods.addresses {
			out[a] = true
		}
	}
	return out
}

// restoreLeaving loads what an earlier syncer reported: pods that are about to stop must not be endpoints again because the
// syncer starts.
func (s *Syncer) restoreLeaving() {
	for _, b := range s.Bindings() {
		if state, has := b.State(s.cluster); has && state.Drain != nil {
			s.endpoints.setLeaving(b.Key(), state.Drain.Addresses, time.Time{})
		}
	}
}
