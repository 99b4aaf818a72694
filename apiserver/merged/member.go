package merged

import (
	"context"
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// member watches one workspace for a mergedWatch, and keeps it open.
type member struct {
	*mergedWatch
	ref Ref
	// revision is where the client has seen the workspace, 0 if it has not. now is set if it does not want to see the present objects.
	revision int64
	now      bool
}

// memberNews is what a member reports: an event; without one, that everything up to the revision was sent; workspaces that its own one has; that
// the workspace does not have the resource (absent), has ended, or has the resource after all (begun); or an error that ends the watch.
type memberNews struct {
	uid                  string
	event                *watch.Event
	revision             int64
	below                []Ref
	absent, ended, begun bool
	err                  error
}

func (m *member) report(n memberNews) {
	n.uid = m.ref.UID
	select {
	case m.news <- n:
	case <-m.ctx.Done():
	}
}

func (m *member) run() {
	err := m.watch()
	switch {
	case err == nil:
	case errors.Is(err, ErrAbsent) && m.revision == 0:
		m.report(memberNews{absent: true, ended: true})
	case errors.Is(err, ErrAbsent):
		m.report(memberNews{err: lost()})
	default:
		m.report(memberNews{err: err})
	}
}

// watch reports the events of the workspace until the watch ends.
// Errors: ErrAbsent if the workspace does not have the resource when the watch begins.
func (m *member) watch() error {
	ctx, w, release, err := m.Enter(m.ctx, m.ref)
	if err != nil {
		return err
	}
	defer release()
	changes, err := w.Follow(ctx) // before anything is read: no change is missed
	if err != nil {
		return err
	}
	if err := m.reportBelow(ctx, w); err != nil {
		return err
	}
	from, err := w.Source(ctx)
	if errors.Is(err, ErrAbsent) && m.revision == 0 && m.Waits() {
		m.report(memberNews{absent: true})
		if from, err = m.await(ctx, w, changes); err == nil && from.Interface != nil {
			m.now = false
			m.report(memberNews{begun: true})
		}
	}
	if err != nil || from.Interface == nil {
		return err
	}
	defer from.Release()
	return m.watchIn(ctx, w, from, changes)
}

// reportBelow reports the workspaces of the scope that this one has.
func (m *member) reportBelow(ctx context.Context, w Workspace) error {
	below, err := w.Below(ctx)
	if err == nil && len(below) > 0 {
		m.report(memberNews{below: below})
	}
	return err
}

// await returns the source of the workspace when it has the resource. It returns none if the workspace or the watch ends before.
func (m *member) await(ctx context.Context, w Workspace, changes <-chan struct{}) (Source, error) {
	for {
		if _, more := <-changes; !more {
			if ctx.Err() == nil {
				return Source{}, lost() // changes are unknown from now on
			}
			return Source{}, nil
		}
		if err := m.reportBelow(ctx, w); err != nil {
			return Source{}, m.unless(ctx, err)
		}
		from, err := w.Source(ctx)
		if !errors.Is(err, ErrAbsent) {
			return from, m.unless(ctx, err)
		}
	}
}

// unless returns an error of a workspace that the client has not seen, none if the workspace has ended.
func (m *member) unless(ended context.Context, err error) error {
	if ended.Err() != nil {
		return nil
	}
	return err
}

// watchIn reports the events of a source until the watch ends.
func (m *member) watchIn(ctx context.Context, w Workspace, from Source, changes <-chan struct{}) error {
	if m.now {
		revision, err := from.GetCurrentResourceVersion(ctx)
		if err != nil {
			return err
		}
		m.revision = int64(revision)
		m.report(memberNews{revision: m.revision})
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(from.Life, cancel)()
	events, err := from.Watch(watched, m.key, from.options(m.options()))
	if err != nil {
		return err
	}
	defer events.Stop()
	for {
		select {
		case e, more := <-events.ResultChan():
			if !more {
				return m.ended(lost())
			}
			if err := m.take(e); err != nil {
				return err
			}
		case _, more := <-changes:
			if !more || ctx.Err() != nil {
				return m.ended(lost())
			}
			if err := m.check(ctx, w, from); err != nil {
				return m.ended(err)
			}
		}
	}
}

// check returns an error if the workspace does not have the resource from the same source any more.
func (m *member) check(ctx context.Context, w Workspace, is Source) error {
	if err := m.reportBelow(ctx, w); err != nil {
		return err
	}
	from, err := w.Source(ctx)
	if err != nil {
		if errors.Is(err, ErrAbsent) || ctx.Err() != nil {
			err = lost()
		}
		return err
	}
	defer from.Release()
	if from.Identity != is.Identity {
		return lost()
	}
	return nil
}

// ended returns the error for the end of a workspace, none if the whole watch has ended.
func (m *member) ended(err error) error {
	if m.ctx.Err() != nil {
		return nil
	}
	return err
}

// options are those of the watch of the workspace.
func (m *member) options() storage.ListOptions {
	opts := m.opts
	opts.Predicate.AllowWatchBookmarks = true // they have the revision of the keyspace
	if m.revision > 0 {
		opts.ResourceVersion, opts.ResourceVersionMatch, opts.SendInitialEvents = strconv.FormatInt(m.revision, 10), "", nil
		return opts
	}
	initial := true
	opts.ResourceVersion, opts.ResourceVersionMatch, opts.SendInitialEvents = "", metav1.ResourceVersionMatchNotOlderThan, &initial
	return opts
}

// take reports an event of the workspace.
func (m *member) take(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	revision, initialEnd, err := revisionOf(e.Object)
	if err != nil {
		return err
	}
	switch {
	case e.Type != watch.Bookmark:
		annotate(e.Object, m.ref.Path)
		m.report(memberNews{event: &e, revision: revision})
	case m.revision > 0 || initialEnd:
		m.revision = revision
		m.report(memberNews{revision: revision})
	}
	return nil
}
