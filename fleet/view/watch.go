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
	// bookmarkEvery is how often a watcher that wants to know is told how far it is,
	// and all are written to, so that a connection that is gone is noticed.
	bookmarkEvery = 30 * time.Second
	// longestWatch is how long a watch lasts that names no end itself.
	longestWatch = time.Hour
)

// errGone: nobody reads what is written.
var errGone = errors.New("the watcher is gone")

// stream is one watch.
type stream struct {
	*request
	host      *Host
	want      func(place) bool
	kind      metav1.TypeMeta // of bookmarks
	bookmarks bool
	version   uint64 // up to which the watcher has been told
	known     uint64 // up to which it knew when it began
	w         http.ResponseWriter
	out       *json.Encoder
}

// watch tells of changes from a version on, until somebody has had enough of it.
func (h *Host) watch(w http.ResponseWriter, r *request, what place) {
	want, err := r.wants(what)
	if err != nil {
		refuse(w, err)
		return
	}
	q := r.URL.Query()
	s := &stream{request: r, host: h, want: want, bookmarks: isTrue(r.Request, "allowWatchBookmarks"), w: w, out: json.NewEncoder(w),
		kind: metav1.TypeMeta{APIVersion: groupVersion(what.resource), Kind: kindOf(r, what)}}
	from := q.Get("resourceVersion")
	if from != "" && from != "0" {
		if s.version, err = strconv.ParseUint(from, 10, 64); err != nil {
			refuse(w, refusal(metav1.StatusReasonExpired, "resourceVersion %q is not one of this view: list anew", from))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchTime(q.Get("timeoutSeconds")))
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if from == "" || from == "0" || isTrue(r.Request, "sendInitialEvents") {
		if err = s.begin(ctx, isTrue(r.Request, "sendInitialEvents")); err != nil {
			s.end(err)
			return
		}
	}
	s.known = s.version
	s.end(s.follow(ctx))
}

func kindOf(r *request, what place) string {
	for _, k := range r.view.kinds() {
		if k.resource == what.resource {
			return k.kind
		}
	}
	return ""
}

func watchTime(seconds string) time.Duration {
	n, err := strconv.Atoi(seconds)
	if err != nil || n <= 0 {
		return longestWatch
	}
	return min(time.Duration(n)*time.Second, longestWatch)
}

// begin tells of all that is there and, to who asked for it, when that was all.
func (s *stream) begin(ctx context.Context, mark bool) error {
	there, version := s.view.ledger.now(s.want)
	for _, r := range there {
		object, err := s.view.render(ctx, r)
		if err != nil {
			return err
		}
		if object == nil {
			continue
		}
		if err := s.tell(watch.Added, object); err != nil {
			return err
		}
	}
	s.version = version
	if !mark {
		return s.flush()
	}
	return s.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// follow tells of changes until ctx ends or the watcher may see no more.
func (s *stream) follow(ctx context.Context) error {
	ticker := s.host.cfg.Clock.NewTicker(bookmarkEvery)
	defer ticker.Stop()
	for {
		if err := s.may(); err != nil {
			return err
		}
		changes, upTo, more, ok := s.view.ledger.since(s.version, s.want)
		if !ok {
			return refusal(metav1.StatusReasonExpired, "resourceVersion %d is of another server or too old: list anew", s.version)
		}
		for _, r := range changes {
			if err := s.change(ctx, r); err != nil {
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

// change tells of one change.
func (s *stream) change(ctx context.Context, r record) error {
	if !r.gone {
		object, err := s.view.render(ctx, r)
		if err != nil {
			return err
		}
		if object == nil {
			return nil // it has gone meanwhile, which is the next change
		}
		if r.born > s.known {
			return s.tell(watch.Added, object)
		}
		return s.tell(watch.Modified, object)
	}
	object, err := remains(r)
	if err != nil {
		return err
	}
	return s.tell(watch.Deleted, object)
}

// may judges again who watches: a watch that is left alone can outlast a credential.
func (s *stream) may() error {
	c, exists := s.view.view.Cluster()
	if s.caller.isSyncer() {
		return admit(c, exists, s.cluster, s.caller.Groups)
	}
	return nil
}

func (s *stream) bookmark(annotations map[string]string) error {
	object, err := json.Marshal(metav1.PartialObjectMetadata{TypeMeta: s.kind,
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: formatVersion(s.version), Annotations: annotations}})
	if err != nil {
		return err
	}
	if err := s.tell(watch.Bookmark, object); err != nil {
		return err
	}
	return s.flush()
}

func (s *stream) tell(kind watch.EventType, object json.RawMessage) error {
	if err := s.out.Encode(event{Type: string(kind), Object: object}); err != nil {
		return errGone
	}
	return nil
}

func (s *stream) flush() error {
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		return errGone
	}
	return nil
}

// end says why a watch ends before its time.
func (s *stream) end(err error) {
	if err == nil || errors.Is(err, errGone) {
		return
	}
	status := statusOf(err)
	object, err := json.Marshal(&status)
	if err != nil {
		return
	}
	if s.tell(watch.Error, object) == nil {
		_ = s.flush()
	}
}
