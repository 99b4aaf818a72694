package aggregate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	watchcodec "k8s.io/client-go/rest/watch"
	"k8s.io/klog/v2"
)

// withoutOwners keeps only the identity of objects. A garbage collector acts upon owner references and finalizers, and needs
// neither annotations nor labels nor managed fields. These may have much of the object: kubectl apply copies all of it to an
// annotation, and whoever controls a member can send requests as its garbage collector.
func withoutOwners(obj runtime.Object) error {
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		o.ObjectMeta = identityOf(&o.ObjectMeta)
	case *metav1.PartialObjectMetadataList:
		for i := range o.Items {
			o.Items[i].ObjectMeta = identityOf(&o.Items[i].ObjectMeta)
		}
	default:
		return fmt.Errorf("unexpected type %T: not metadata", obj)
	}
	return nil
}

func identityOf(m *metav1.ObjectMeta) metav1.ObjectMeta {
	var annotations map[string]string
	if m.Annotations[metav1.InitialEventsAnnotationKey] == "true" { // of a bookmark: the end of a list that is watched
		annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return metav1.ObjectMeta{Annotations: annotations, Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds}
}

func metadataAs(mediaType, kind string) string {
	return convertedTo(mediaType, kind, "meta.k8s.io", "v1")
}

// readWithoutOwners answers a get or a list. It buffers a list of metadata to change
// it: some hundred bytes for each object.
func (h *Handler) readWithoutOwners(w http.ResponseWriter, in *http.Request, list bool) {
	mediaType, kind := negotiateEncoding(in.Header.Get("Accept")), "PartialObjectMetadata"
	if list {
		kind = "PartialObjectMetadataList"
	}
	answer := h.fetch(in, metadataAs(mediaType, kind), "")
	if answer.code != http.StatusOK {
		answer.copyTo(w)
		return
	}
	obj, err := h.codec.decode(answer.body.Bytes())
	if err == nil {
		err = withoutOwners(obj)
	}
	var body []byte
	if err == nil {
		body, err = h.codec.encode(mediaType, obj)
	}
	if err != nil {
		writeError(w, internalError("removing owners from the workspace's response", err))
		return
	}
	answer.copyWithBody(w, mediaType, body)
}

// watchWithoutOwners answers a watch and changes each event.
func (h *Handler) watchWithoutOwners(w http.ResponseWriter, in *http.Request) {
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	mediaType := negotiateEncoding(in.Header.Get("Accept"))
	asked := in.WithContext(ctx)
	asked.Header = in.Header.Clone()
	asked.Header.Set("Accept", metadataAs(mediaType, "PartialObjectMetadata"))
	asked.Header.Del("Accept-Encoding")
	// Over a WebSocket the next handler would hijack the connection.
	asked.Header.Del("Connection")
	asked.Header.Del("Upgrade")

	s := &stream{ctx: ctx, outer: w, header: http.Header{}, done: make(chan struct{})}
	s.start = func(body *io.PipeReader, contentType string) {
		defer close(s.done)
		err := h.translate(body, w, contentType)
		// The writer gets an error when there is no reader any more.
		_ = body.CloseWithError(io.ErrClosedPipe)
		if err != nil && err != io.EOF && ctx.Err() == nil {
			klog.ErrorS(err, "watch of a member cluster ended; the client will restart it", "path", in.URL.Path)
		}
		cancel()
	}
	defer s.finish()
	h.next.ServeHTTP(s, asked)
}

// translate copies events without owners until the stream ends.
func (h *Handler) translate(body *io.PipeReader, w http.ResponseWriter, contentType string) error {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("read content type %q: %w", contentType, err)
	}
	info, err := h.codec.serializer(mediaType)
	if err != nil {
		return err
	}
	events := info.StreamSerializer
	from := watchcodec.NewDecoder(streaming.NewDecoder(events.Framer.NewFrameReader(body), events.Serializer), h.codec.factory.UniversalDeserializer())
	to := watchcodec.NewEncoder(streaming.NewEncoder(events.Framer.NewFrameWriter(w), events.Serializer), info.Serializer)
	for {
		kind, obj, err := from.Decode()
		if err != nil {
			return err
		}
		if kind != watch.Error {
			if err := withoutOwners(obj); err != nil {
				return fmt.Errorf("remove owners from an event: %w", err)
			}
		}
		if err := to.Encode(&watch.Event{Type: kind, Object: obj}); err != nil {
			return err
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
}

// stream is the response writer for a watch of the next handler. A response other than
// 200 is not a watch, and is written unchanged.
type stream struct {
	ctx    context.Context
	outer  http.ResponseWriter
	header http.Header
	start  func(body *io.PipeReader, contentType string)

	code   int
	events *io.PipeWriter
	done   chan struct{}
}

func (s *stream) Header() http.Header { return s.header }

func (s *stream) WriteHeader(code int) {
	if s.code != 0 || code < http.StatusOK {
		return
	}
	s.code = code
	maps.Copy(s.outer.Header(), s.header)
	s.outer.WriteHeader(code)
	if code == http.StatusOK {
		r, w := io.Pipe()
		s.events = w
		if f, ok := s.outer.(http.Flusher); ok {
			f.Flush()
		}
		go s.start(r, s.header.Get("Content-Type"))
	}
}

func (s *stream) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.events == nil {
		return s.outer.Write(p)
	}
	return s.events.Write(p)
}

// Flush does nothing: each event is flushed when it is written.
func (s *stream) Flush() {}

// CloseNotify is required by upstream's wrappers of a response before they support
// Flush.
func (s *stream) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(s.ctx, func() { gone <- true })
	return gone
}

// finish waits until the last event is written. After that, the outer writer must not
// be used.
func (s *stream) finish() {
	if s.events != nil {
		_ = s.events.Close() // never fails
		<-s.done
	}
}
