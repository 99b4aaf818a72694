// Package fencing stops replicas in a cluster that has no contact to Atoll, so that another cluster can take them over
// and none runs twice.
//
// It runs beside the syncer of a cluster in mode Pull, and needs only the cluster. Which replicas it stops is recorded in
// the cluster before they start: a syncer that starts while there is no contact stops them too.
package fencing

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// tick is the pause between two looks at the time.
	tick = time.Second
	// liftAfter is how long there has to be contact before stopped replicas may run again: the control plane may be about to
	// give them to another cluster.
	liftAfter = 20 * time.Second
	// stopAgain is when to set the replicas of an object to 0 again: a user of the cluster may have raised them.
	stopAgain = 10 * time.Second
	// parallelStops is how many objects are stopped at the same time.
	parallelStops = 16
)

// Object is one whose replicas are stopped without contact.
type Object struct {
	// Binding is its key in the view.
	Binding types.NamespacedName `json:"binding"`
	// Resource and Name are those in the cluster, and Replicas is the path of the field with the count.
	Resource schema.GroupVersionResource `json:"resource"`
	Name     types.NamespacedName        `json:"name"`
	Replicas []string                    `json:"replicas"`
	// Lease is how long it runs without contact.
	Lease time.Duration `json:"lease"`
}

// Store keeps the record in the cluster, and stops replicas there.
type Store interface {
	// Load returns the record, and when there was contact last; nothing if it was never saved.
	Load(ctx context.Context) ([]Object, time.Time, error)
	Save(ctx context.Context, objects []Object, contact time.Time) error
	// Scale sets the replicas of an object.
	Scale(ctx context.Context, o Object, replicas int32) error
}

// Fence stops replicas of a cluster without contact.
type Fence struct {
	store Store
	clock clock.WithTicker
	log   *slog.Logger

	mu       sync.Mutex
	loaded   bool
	contact  time.Time // when the last successful report began
	regained time.Time // since when there is contact again, after objects were stopped; zero otherwise
	objects  map[types.NamespacedName]Object
	stopped  map[types.NamespacedName]bool
	done     map[types.NamespacedName]time.Time // when their replicas were last set to 0
	// saving serializes writes of the record.
	saving sync.Mutex
}

// New returns a Fence. It stops nothing before Run.
func New(store Store, clock clock.WithTicker, log *slog.Logger) *Fence {
	return &Fence{store: store, clock: clock, log: log, objects: map[types.NamespacedName]Object{}, stopped: map[types.NamespacedName]bool{},
		done: map[types.NamespacedName]time.Time{}}
}

// Run stops replicas whose lease has lapsed, until ctx ends.
func (f *Fence) Run(ctx context.Context) error {
	ticker := f.clock.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := f.load(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("cannot read the record of the replicas to stop without contact; retrying", "error", err)
		}
		f.stop(ctx, f.lapse())
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
	return nil
}

// stop sets the replicas of objects to 0, several at a time: the time until another cluster takes over is limited.
func (f *Fence) stop(ctx context.Context, due []Object) {
	var group errgroup.Group
	group.SetLimit(parallelStops)
	for _, o := range due {
		group.Go(func() error {
			err := f.store.Scale(ctx, o, 0)
			if err != nil && ctx.Err() == nil {
				f.log.Error("cannot stop the replicas of an object without contact to Atoll; retrying", "object", o.Name.String(), "resource", o.Resource.Resource, "error", err)
			}
			if err == nil {
				f.mu.Lock()
				f.done[o.Binding] = f.clock.Now()
				f.mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait()
}

// load reads the record once. A time of contact in the record that lies in the future is not believed: the lease then
// begins now.
func (f *Fence) load(ctx context.Context) error {
	f.mu.Lock()
	loaded := f.loaded
	f.mu.Unlock()
	if loaded {
		return nil
	}
	objects, contact, err := f.store.Load(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loaded = true
	for _, o := range objects {
		if _, newer := f.objects[o.Binding]; !newer {
			f.objects[o.Binding] = o
		}
	}
	now := f.clock.Now()
	for key, o := range f.objects {
		if !contact.IsZero() && now.Sub(contact) >= o.Lease {
			f.stopped[key] = true // as the process before had to stop it
		}
	}
	if f.contact.IsZero() {
		if f.contact = contact; contact.After(now) {
			f.contact = now
		}
	}
	return nil
}

// lapse returns the objects to stop: those without contact for their lease, as long as they are not known to be 0.
func (f *Fence) lapse() (due []Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.contact.IsZero() {
		return nil // nothing was ever recorded
	}
	for key, o := range f.objects {
		if f.clock.Since(f.contact) < o.Lease {
			continue
		}
		f.regained = time.Time{}
		if !f.stopped[key] {
			f.stopped[key] = true
			f.log.Warn("no contact to Atoll: stopping replicas, so that another cluster can take them over", "object", o.Name.String(), "resource", o.Resource.Resource, "lease", o.Lease)
		}
		if last, done := f.done[key]; !done || f.clock.Since(last) >= stopAgain {
			due = append(due, o)
		}
	}
	return due
}

// Renew records that a report which began at a time has reached Atoll.
func (f *Fence) Renew(ctx context.Context, began time.Time) {
	f.mu.Lock()
	if began.After(f.contact) {
		f.contact = began
	}
	if len(f.stopped) > 0 && f.regained.IsZero() {
		f.regained = f.clock.Now()
	}
	f.mu.Unlock()
	if err := f.save(ctx, true); err != nil && ctx.Err() == nil {
		f.log.Warn("cannot record the contact to Atoll", "error", err)
	}
}

// save writes the record. An empty one is not kept current.
func (f *Fence) save(ctx context.Context, onlyIfAny bool) error {
	f.saving.Lock()
	defer f.saving.Unlock()
	f.mu.Lock()
	all := make([]Object, 0, len(f.objects))
	for _, o := range f.objects {
		all = append(all, o)
	}
	contact, loaded := f.contact, f.loaded
	f.mu.Unlock()
	if !loaded || onlyIfAny && len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b Object) int { return compareKeys(a.Binding, b.Binding) })
	return f.store.Save(ctx, all, contact)
}

// Guard records an object before its replicas start. It fails if the record cannot be written: then they must not start.
func (f *Fence) Guard(ctx context.Context, binding types.NamespacedName, resource schema.GroupVersionResource, name types.NamespacedName, replicas []string, lease time.Duration) error {
	o := Object{binding, resource, name, replicas, lease}
	if err := f.load(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	was, had := f.objects[o.Binding]
	if had && equal(was, o) {
		f.mu.Unlock()
		return nil
	}
	f.objects[o.Binding] = o
	f.mu.Unlock()
	if err := f.save(ctx, false); err != nil {
		f.mu.Lock()
		delete(f.objects, o.Binding) // so that the next attempt writes it
		f.mu.Unlock()
		return err
	}
	return nil
}

// Release removes an object that is no longer stopped without contact, from the record too.
func (f *Fence) Release(ctx context.Context, binding types.NamespacedName) error {
	f.mu.Lock()
	_, had := f.objects[binding]
	delete(f.objects, binding)
	delete(f.stopped, binding)
	delete(f.done, binding)
	f.mu.Unlock()
	if !had {
		return nil
	}
	return f.save(ctx, false)
}

// Stopped reports whether the replicas of an object are stopped, and when they may run again at the earliest, if the
// control plane then still wants them here.
func (f *Fence) Stopped(binding types.NamespacedName) (stopped bool, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped[binding] {
		return false, 0
	}
	if f.regained.IsZero() {
		return true, tick
	}
	return true, max(f.regained.Add(liftAfter).Sub(f.clock.Now()), 0)
}

// Lift lets stopped replicas run again. The caller has read that they are to run here, after Stopped returned no wait. With
// a count it sets the replicas: an autoscaler does nothing while they are 0.
func (f *Fence) Lift(ctx context.Context, binding types.NamespacedName, replicas int32) error {
	f.mu.Lock()
	o, guarded := f.objects[binding]
	f.mu.Unlock()
	if guarded && replicas > 0 {
		if err := f.store.Scale(ctx, o, replicas); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.stopped, binding)
	delete(f.done, binding)
	if len(f.stopped) == 0 {
		f.regained = time.Time{}
	}
	return nil
}

func equal(a, b Object) bool {
	return a.Binding == b.Binding && a.Resource == b.Resource && a.Name == b.Name && a.Lease == b.Lease && slices.Equal(a.Replicas, b.Replicas)
}

func compareKeys(a, b types.NamespacedName) int {
	switch x, y := a.String(), b.String(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}
