package workspaces

import (
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// member watches one consumer for a mergedWatch, and keeps its workspace open.
type member struct {
	*mergedWatch
	consumer recordedConsumer
	// revision is where the client has seen the consumer, 0 if it has not. now is set if it does not want to see the present objects.
	revision int64
	now      bool
}

// memberNews is what a member reports: an event; without one, that everything up to the revision was sent; that the workspace is no
// consumer; or an error that ends the watch.
type memberNews struct {
	uid      string
	event    *watch.Event
	revision int64
	absent   bool
	err      error
}

func (m *member) report(n memberNews) {
	n.uid = m.consumer.uid
	select {
	case m.news <- n:
	case <-m.ctx.Done():
	}
}

func (m *member) run() {
	err := m.watch()
	switch {
	case err == nil:
	case errors.Is(err, ErrNotFound) && m.revision == 0:
		m.report(memberNews{absent: true})
	case errors.Is(err, ErrNotFound):
		m.report(memberNews{err: expired("a workspace is no consumer any more")})
	default:
		m.report(memberNews{err: err})
	}
}

// watch reports the events of the consumer until the watch ends.
// Errors: ErrNotFound if the workspace is no consumer when the watch begins.
func (m *member) watch() error {
	ctx, w, release, err := m.enter(m.ctx, m.consumer)
	if err != nil {
		return err
	}
	defer release()
	bindings, err := w.follow(ctx, customKey(bindingResource)) // before the binding is read: no change is missed
	if err != nil {
		return err
	}
	if consumes, err := m.consumes(ctx, m.view, w, m.resource); err != nil {
		return err
	} else if !consumes {
		return ErrNotFound
	}
	store, err := w.store(m.store)
	if err != nil {
		return err
	}
	if m.now {
		revision, err := store.GetCurrentResourceVersion(ctx)
		if err != nil {
			return err
		}
		m.revision = int64(revision)
		m.report(memberNews{revision: m.revision})
	}
	events, err := watchIn(ctx, store, m.key, m.options())
	if err != nil {
		return err
	}
	defer events.Stop()
	lost := expired("a workspace is no consumer any more")
	for {
		select {
		case e, more := <-events.ResultChan():
			if !more && ctx.Err() == nil {
				return lost
			}
			if !more {
				return m.ended(lost)
			}
			if err := m.take(e); err != nil {
				return err
			}
		case _, more := <-bindings:
			consumes, err := m.consumes(ctx, m.view, w, m.resource)
			switch {
			case ctx.Err() != nil || !more:
				return m.ended(lost)
			case err != nil:
				return err
			case !consumes:
				return lost
			}
		}
	}
}

// ended returns the error for the end of a consumer, none if the whole watch has ended.
func (m *member) ended(lost error) error {
	if m.ctx.Err() != nil {
		return nil
	}
	return lost
}

// options are those of the watch of the consumer.
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

// take reports an event of the consumer.
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
		annotate(e.Object, m.consumer.path)
		m.report(memberNews{event: &e, revision: revision})
	case m.revision > 0 || initialEnd:
		m.revision = revision
		m.report(memberNews{revision: revision})
	}
	return nil
}
