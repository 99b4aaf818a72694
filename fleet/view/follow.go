package view

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// watchTimeout is how long a watch may send nothing, not even a bookmark, before it is
	// considered dead: a proxy may have dropped the connection.
	watchTimeout = 2*bookmarkInterval + 15*time.Second
	// minBackoff and maxBackoff bound the pause between attempts to watch.
	minBackoff = 200 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// change is one change from a watch.
type change struct {
	key     types.NamespacedName
	object  json.RawMessage
	removed bool
	// listed is set at the end of a list: objects that are not in it are not in the view.
	listed map[types.NamespacedName]bool
}

// follow keeps a resource of the view current until ctx ends, and recovers from every failure
// of a watch. It calls listed when everything has been read.
func (v *Remote) follow(ctx context.Context, resource string, handle func(change) error, listed func()) {
	backoff := flowcontrol.NewBackOff(minBackoff, maxBackoff)
	backoff.Clock = v.clock
	version := ""
	for lastError := ""; ctx.Err() == nil; {
		began := v.clock.Now()
		err := v.watch(ctx, resource, &version, handle, listed)
		if ctx.Err() != nil {
			return
		}
		if resource == interpretations && apierrors.IsNotFound(err) {
			listed() // a server of an older version does not have this resource
		}
		if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			version = ""
		}
		if v.clock.Since(began) > maxBackoff {
			backoff.Reset(resource)
		}
		if err != nil && err.Error() != lastError && !apierrors.IsResourceExpired(err) {
			lastError = err.Error()
			v.log.Warn("watch of the view failed; keeping the known state and retrying", "resource", resource, "error", err)
		}
		backoff.Next(resource, v.clock.Now())
		timer := v.clock.NewTimer(backoff.Get(resource))
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// watch processes the events of one watch, and updates version. It calls synced when everything
// has been received.
func (v *Remote) watch(ctx context.Context, resource string, version *string, handle func(change) error, synced func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := v.clock.NewTimer(watchTimeout)
	defer quiet.Stop()
	received := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-received:
				quiet.Stop()
				quiet.Reset(watchTimeout)
			case <-quiet.C():
				cancel(fmt.Errorf("the server has sent nothing for %s", watchTimeout))
				return
			}
		}
	}()
	body, ended, err := v.client.watch(ctx, ownPath("", resource, ""), watchQuery(*version))
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer body.Close()
	var listed map[types.NamespacedName]bool
	if *version == "" {
		listed = map[types.NamespacedName]bool{}
	}
	// Reading ends also when the certificate is renewed: existing connections keep the old one.
	defer context.AfterFunc(ended, func() { cancel(nil) })()
	events := json.NewDecoder(bufio.NewReader(body))
	for {
		var e event
		if err := events.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) || ended.Err() != nil {
				return nil
			}
			return errors.Join(context.Cause(ctx), err)
		}
		select {
		case received <- struct{}{}:
		default:
		}
		if err := handleEvent(e, version, &listed, handle); err != nil {
			return err
		}
		if listed == nil {
			synced()
		}
	}
}

func watchQuery(version string) url.Values {
	q := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}}
	if version == "" {
		q.Set("sendInitialEvents", "true")
		q.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		q.Set("resourceVersion", version)
	}
	return q
}

// handleEvent processes one event. While a list is incomplete, listed contains the keys so far,
// and version is not updated: an interrupted list starts from scratch.
func handleEvent(e event, version *string, listed *map[types.NamespacedName]bool, handle func(change) error) error {
	if watch.EventType(e.Type) == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(e.Object, &status); err != nil {
			return fmt.Errorf("decode the error of the watch: %w", err)
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	var head metav1.PartialObjectMetadata
	if err := json.Unmarshal(e.Object, &head); err != nil {
		return fmt.Errorf("decode an event: %w", err)
	}
	key := types.NamespacedName{Namespace: head.Namespace, Name: head.Name}
	switch watch.EventType(e.Type) {
	case watch.Added, watch.Modified:
		if *listed != nil {
			(*listed)[key] = true
		}
		if err := handle(change{key: key, object: e.Object}); err != nil {
			return err
		}
	case watch.Deleted:
		if err := handle(change{key: key, removed: true}); err != nil {
			return err
		}
	case watch.Bookmark:
		if head.Annotations[metav1.InitialEventsAnnotationKey] == "true" && *listed != nil {
			if err := handle(change{listed: *listed}); err != nil {
				return err
			}
			*listed = nil
		}
	default:
		return fmt.Errorf("unknown event type %q", e.Type)
	}
	if *listed == nil {
		*version = head.ResourceVersion
	}
	return nil
}
