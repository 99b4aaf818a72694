package view

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// bookmarkInterval is how often a watcher that allows it gets a bookmark. It also detects
	// dead connections.
	bookmarkInterval = 30 * time.Second
	// maxWatchDuration is the duration of a watch that requests no shorter one.
	maxWatchDuration = time.Hour
)

// errClientGone means that the client does not read any more.
var errClientGone = errors.New("the client of the watch is gone")

// stream is one watch.
type stream struct {
	*request
	host           *Host
	selects        func(objectKey) bool
	kind           metav1.TypeMeta // type of bookmarks
	bookmarks      bool
	version        uint64 // last version sent
	initialVersion uint64 // version of the client at the start
	w              http.ResponseWriter
	out            *json.Encoder
}

// watch sends the changes after a version until either side ends the watch.
func (h *Host) watch(w http.ResponseWriter, r *request, what objectKey) {
	want, err := r.selector(what)
	if err != nil {
		writeError(w, err)
		return
	}
	q := r.URL.Query()
	s := &stream{request: r, host: h, selects: want, bookmarks: isTrue(r.Request, "allowWatchBookmarks"), w: w, out: json.NewEncoder(w),
		kind: metav1.TypeMeta{APIVersion: groupVersion(what.resource), Kind: kindOf(r, what)}}
	from := q.Get("resourceVersion")
	if from != "" && from != "0" {
		if s.version, err = strconv.ParseUint(from, 10, 64); err != nil {
			writeError(w, newStatusError(metav1.StatusReasonExpired, "resourceVersion %q is not a version of this view: list again", from))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchTime(q.Get("timeoutSeconds")))
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if from == "" || from == "0" || isTrue(r.Request, "sendInitialEvents") {
		if err = s.sendInitial(ctx, isTrue(r.Request, "sendInitialEvents")); err != nil {
			s.sendError(err)
			return
		}
	}
	s.initialVersion = s.version
	s.sendError(s.follow(ctx))
}

func kindOf(r *request, what objectKey) string {
	for _, k := range r.view.resources() {
		if k.resource == what.resource {
			return k.kind
		}
	}
	return ""
}

func watchTime(seconds string) time.Duration {
	n, err := strconv.Atoi(seconds)
	if err != nil || n <= 0 {
		return maxWatchDuration
	}
	return min(time.Duration(n)*time.Second, maxWatchDuration)
}

// sendInitial sends all existing objects and, if requested, a bookmark after the last one.
func (s *stream) sendInitial(ctx context.Context, mark bool) error {
	entries, version := s.view.log.snapshot(s.selects)
	for _, r := range entries {
		object, err := s.view.render(ctx, r)
		if err != nil {
			return err
		}
		if object == nil {
			continue
		}
		if err := s.send(watch.Added, object); err != nil {
			return err
		}
	}
	s.version = version
	if !mark {
		return s.flush()
	}
	return s.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// follow sends changes until ctx ends or the watcher loses its authorization.
func (s *stream) follow(ctx context.Context) error {
	ticker := s.host.cfg.Clock.NewTicker(bookmarkInterval)
	defer ticker.Stop()
	for {
		if err := s.authorize(); err != nil {
			return err
		}
		changes, upTo, more, ok := s.view.log.since(s.version, s.selects)
		if !ok {
			return newStatusError(metav1.StatusReasonExpired, "resourceVersion %d is from another server or too old: list again", s.version)
		}
		for _, r := range changes {
			if err := s.sendChange(ctx, r); err != nil {
				return err
			}
		}
		s.version = upTo
		if len(changes) > 0 {
			if err := s.flush(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.caches.ctx.Done():
			return nil
		case <-more:
		case <-ticker.C():
			if s.bookmarks {
				if err := s.bookmark(nil); err != nil {
					return err
				}
			}
		}
	}
}

// sendChange sends one change.
func (s *stream) sendChange(ctx context.Context, r logEntry) error {
	if !r.removed {
		object, err := s.view.render(ctx, r)
		if err != nil {
			return err
		}
		if object == nil {
			return nil // removed meanwhile; that is the next change
		}
		if r.created > s.initialVersion {
			return s.send(watch.Added, object)
		}
		return s.send(watch.Modified, object)
	}
	object, err := renderDeleted(r)
	if err != nil {
		return err
	}
	return s.send(watch.Deleted, object)
}

// authorize checks the watcher again: an idle watch can outlast a credential.
func (s *stream) authorize() error {
	c, exists := s.view.view.Cluster()
	if s.caller.isSyncer() {
		return authorizeSyncer(c, exists, s.cluster, s.caller.Groups)
	}
	return nil
}

func (s *stream) bookmark(annotations map[string]string) error {
	object, err := json.Marshal(metav1.PartialObjectMetadata{TypeMeta: s.kind,
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: formatVersion(s.version), Annotations: annotations}})
	if err != nil {
		return err
	}
	if err := s.send(watch.Bookmark, object); err != nil {
		return err
	}
	return s.flush()
}

func (s *stream) send(kind watch.EventType, object json.RawMessage) error {
	if err := s.out.Encode(event{Type: string(kind), Object: object}); err != nil {
		return errClientGone
	}
	return nil
}

func (s *stream) flush() error {
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// sendError sends the reason why a watch ends early.
func (s *stream) sendError(err error) {
	if err == nil || errors.Is(err, errClientGone) {
		return
	}
	status := statusOf(err)
	object, err := json.Marshal(&status)
	if err != nil {
		return
	}
	if s.send(watch.Error, object) == nil {
		_ = s.flush()
	}
}
