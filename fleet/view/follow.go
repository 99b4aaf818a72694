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
	// silence is how long a watch may say nothing, not even how far it is, before it
	// is taken for dead: somebody on the way has forgotten the connection.
	silence = 2*bookmarkEvery + 15*time.Second
	// firstPause and longestPause are between attempts to watch.
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

// change is what a watch tells.
type change struct {
	key    types.NamespacedName
	object json.RawMessage
	gone   bool
	// all is set when a list has been told: what is not in it is not in the view.
	all map[types.NamespacedName]bool
}

// follow watches a resource of the view until ctx ends, and goes on after everything
// that can happen to a watch. listed is called when everything has been read.
func (v *Remote) follow(ctx context.Context, resource string, take func(change) error, listed func()) {
	pause := flowcontrol.NewBackOff(firstPause, longestPause)
	pause.Clock = v.clock
	version := ""
	for said := ""; ctx.Err() == nil; {
		began := v.clock.Now()
		err := v.watch(ctx, resource, &version, take, listed)
		if ctx.Err() != nil {
			return
		}
		if resource == lessons && apierrors.IsNotFound(err) {
			listed() // a server of an older Atoll has none of them
		}
		if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			version = ""
		}
		if v.clock.Since(began) > longestPause {
			pause.Reset(resource)
		}
		if err != nil && err.Error() != said && !apierrors.IsResourceExpired(err) {
			said = err.Error()
			v.log.Warn("the view cannot be followed; what is known of it stays, and it is tried again", "resource", resource, "error", err)
		}
		pause.Next(resource, v.clock.Now())
		timer := v.clock.NewTimer(pause.Get(resource))
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// watch takes in what one watch tells, and notes in version how far that was. It calls
// told when everything has been told.
func (v *Remote) watch(ctx context.Context, resource string, version *string, take func(change) error, told func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := v.clock.NewTimer(silence)
	defer quiet.Stop()
	heard := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-heard:
				quiet.Stop()
				quiet.Reset(silence)
			case <-quiet.C():
				cancel(fmt.Errorf("the server has said nothing for %s", silence))
				return
			}
		}
	}()
	body, ended, err := v.link.watch(ctx, ownPath("", resource, ""), watchQuery(*version))
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer body.Close()
	var listed map[types.NamespacedName]bool
	if *version == "" {
		listed = map[types.NamespacedName]bool{}
	}
	// Reading ends when the certificate is renewed, too: connections keep the old one.
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
		case heard <- struct{}{}:
		default:
		}
		if err := takeEvent(e, version, &listed, take); err != nil {
			return err
		}
		if listed == nil {
			told()
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

// takeEvent takes in one event. While a list is being told, listed has what it has so
// far, and no version is noted: a list that breaks off begins anew.
func takeEvent(e event, version *string, listed *map[types.NamespacedName]bool, take func(change) error) error {
	if watch.EventType(e.Type) == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(e.Object, &status); err != nil {
			return fmt.Errorf("read why the watch ended: %w", err)
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	var head metav1.PartialObjectMetadata
	if err := json.Unmarshal(e.Object, &head); err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	key := types.NamespacedName{Namespace: head.Namespace, Name: head.Name}
	switch watch.EventType(e.Type) {
	case watch.Added, watch.Modified:
		if *listed != nil {
			(*listed)[key] = true
		}
		if err := take(change{key: key, object: e.Object}); err != nil {
			return err
		}
	case watch.Deleted:
		if err := take(change{key: key, gone: true}); err != nil {
			return err
		}
	case watch.Bookmark:
		if head.Annotations[metav1.InitialEventsAnnotationKey] == "true" && *listed != nil {
			if err := take(change{all: *listed}); err != nil {
				return err
			}
			*listed = nil
		}
	default:
		return fmt.Errorf("an event of type %q is not known", e.Type)
	}
	if *listed == nil {
		*version = head.ResourceVersion
	}
	return nil
}
