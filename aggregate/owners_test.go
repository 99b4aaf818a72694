package aggregate

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	watchcodec "k8s.io/client-go/rest/watch"
)

// owned is a shared object that a garbage collector would act upon.
func owned(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ops", UID: "1", ResourceVersion: "7",
			Labels:          map[string]string{"app": "shop"},
			Annotations:     map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"spec":{"password":"x"}}`},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}},
			Finalizers:      []string{metav1.FinalizerDeleteDependents},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "in-west", UID: "2"}},
		},
	}
}

// metadataServer answers like a workspace, in the requested encoding: a get, a list, or
// a watch of three events and an error.
func metadataServer(t *testing.T) http.HandlerFunc {
	c := newCodec()
	return func(w http.ResponseWriter, r *http.Request) {
		accept := r.Header.Get("Accept")
		mediaType, _, _ := strings.Cut(accept, ";")
		info, err := c.serializer(mediaType)
		if err != nil {
			t.Errorf("Accept: %q", accept)
			return
		}
		if r.URL.Query().Get("watch") != "" {
			if want := metadataAs(mediaType, "PartialObjectMetadata"); accept != want {
				t.Errorf("Accept: %q, want %q", accept, want)
			}
			header := mediaType
			if mediaType == runtime.ContentTypeProtobuf {
				header += ";stream=watch"
			}
			w.Header().Set("Content-Type", header)
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			events := watchcodec.NewEncoder(streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(w), info.StreamSerializer.Serializer), info.Serializer)
			bookmark := owned("")
			bookmark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			gone := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: http.StatusGone, Message: "too old"}
			for _, e := range []watch.Event{{Type: watch.Added, Object: owned("one")}, {Type: watch.Deleted, Object: owned("two")},
				{Type: watch.Bookmark, Object: bookmark}, {Type: watch.Error, Object: gone}} {
				if err := events.Encode(&e); err != nil {
					return
				}
			}
			return
		}
		obj, kind := runtime.Object(owned("one")), "PartialObjectMetadata"
		if strings.HasSuffix(r.URL.Path, "gadgets") {
			list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
				ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}}
			list.Items = append(list.Items, *owned("one"), *owned("two"))
			obj, kind = list, list.Kind
		}
		if want := metadataAs(mediaType, kind); accept != want {
			t.Errorf("Accept: %q, want %q", accept, want)
		}
		w.Header().Set("Content-Type", mediaType)
		if err := info.Serializer.Encode(obj, w); err != nil {
			t.Error(err)
		}
	}
}

func checkFreed(t *testing.T, o *metav1.PartialObjectMetadata, name string) {
	t.Helper()
	if o.Name != name || o.Namespace != "ops" || o.UID == "" || o.ResourceVersion != "7" {
		t.Errorf("another field is missing: %+v", o)
	}
	marks := maps.Clone(o.Annotations)
	delete(marks, metav1.InitialEventsAnnotationKey)
	if len(o.Labels) > 0 || len(marks) > 0 || len(o.ManagedFields) > 0 {
		t.Errorf("%s has more than its identity: %+v", name, o)
	}
	if len(o.OwnerReferences) > 0 || len(o.Finalizers) > 0 {
		t.Errorf("%s still has owners %v and finalizers %v", name, o.OwnerReferences, o.Finalizers)
	}
}

var collectorHeaders = []string{"X-Remote-User", "system:kube-controller-manager", "User-Agent", agent + "metadata-informers", "Accept-Encoding", "gzip"}

func TestCollectorReadsNoOwners(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(mediaType, func(t *testing.T) {
			h := newHandlerFixture(t, metadataServer(t))
			// Even a request for whole objects gets metadata.
			for _, accept := range []string{metadataAs(mediaType, "PartialObjectMetadataList"), mediaType} {
				w := h.serve(h.request("GET", gadgets+"?limit=2", append(collectorHeaders, "Accept", accept)...))
				obj, err := newCodec().decode(w.Body.Bytes())
				list, ok := obj.(*metav1.PartialObjectMetadataList)
				if err != nil || !ok || len(list.Items) != 2 || list.ResourceVersion != "9" || list.Continue != "more" || w.Header().Get("Content-Type") != mediaType {
					t.Fatalf("listed %d %q %+v, %v", w.Code, w.Header().Get("Content-Type"), obj, err)
				}
				checkFreed(t, &list.Items[0], "one")
				checkFreed(t, &list.Items[1], "two")
			}
			w := h.serve(h.request("GET", gadgets+"/one", append(collectorHeaders, "Accept", metadataAs(mediaType, "PartialObjectMetadata"))...))
			obj, err := newCodec().decode(w.Body.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			checkFreed(t, obj.(*metav1.PartialObjectMetadata), "one")
		})
	}
}

// A 404 must stay a 404 (the object is gone, and the member may delete its dependents),
// and no other response may become one.
func TestCollectorGetsErrors(t *testing.T) {
	for _, code := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusServiceUnavailable, http.StatusGone} {
		for _, query := range []string{"", "?watch=true"} {
			h := newHandlerFixture(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3")
				w.WriteHeader(code)
				_, _ = io.WriteString(w, "the reason")
			})
			w := h.serve(h.request("GET", gadgets+query, collectorHeaders...))
			if w.Code != code || w.Body.String() != "the reason" || w.Header().Get("Retry-After") != "3" {
				t.Errorf("%d%s became %d %s", code, query, w.Code, w.Body)
			}
		}
	}
	// An unexpected response is not a list, least of all an empty one.
	h := newHandlerFixture(t, answerJSON(`{"kind":"Gadget","apiVersion":"shop.example.com/v1"}`))
	if w := h.serve(h.request("GET", gadgets, collectorHeaders...)); w.Code != http.StatusInternalServerError {
		t.Errorf("invalid response became %d %s", w.Code, w.Body)
	}
}

func TestCollectorWatchesNoOwners(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(mediaType, func(t *testing.T) {
			h := newHandlerFixture(t, metadataServer(t))
			accept := metadataAs(mediaType, "PartialObjectMetadata") + "," + runtime.ContentTypeJSON
			w := h.serve(h.request("GET", gadgets+"?watch=true", append(collectorHeaders, "Accept", accept)...))
			c := newCodec()
			info, err := c.serializer(mediaType)
			if err != nil {
				t.Fatal(err)
			}
			body := info.StreamSerializer.Framer.NewFrameReader(io.NopCloser(bytes.NewReader(w.Body.Bytes())))
			events := watchcodec.NewDecoder(streaming.NewDecoder(body, info.StreamSerializer.Serializer), c.factory.UniversalDeserializer())
			for _, want := range []struct {
				kind watch.EventType
				name string
			}{{watch.Added, "one"}, {watch.Deleted, "two"}, {watch.Bookmark, ""}} {
				kind, obj, err := events.Decode()
				if err != nil || kind != want.kind {
					t.Fatalf("got %s, %v, want %s; answer %d %q", kind, err, want.kind, w.Code, w.Body)
				}
				checkFreed(t, obj.(*metav1.PartialObjectMetadata), want.name)
				if kind == watch.Bookmark && obj.(*metav1.PartialObjectMetadata).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
					t.Error("the bookmark for the end of the initial events is lost")
				}
			}
			if kind, obj, err := events.Decode(); err != nil || kind != watch.Error || obj.(*metav1.Status).Code != http.StatusGone {
				t.Errorf("got %s %+v, %v, want the error", kind, obj, err)
			}
			if _, _, err := events.Decode(); err != io.EOF {
				t.Errorf("got %v, want the end", err)
			}
		})
	}
}

// Over a real connection: an event arrives when it happens, and the workspace's watch
// ends when the client leaves.
func TestCollectorWatchLive(t *testing.T) {
	send, ended := make(chan string), make(chan struct{})
	h := newHandlerFixture(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		for {
			select {
			case event := <-send:
				if _, err := io.WriteString(w, event+"\n"); err != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.TLS = &tls.ConnectionState{PeerCertificates: h.east}
		h.handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+gadgets+"?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Remote-User", account+"generic-garbage-collector")
	r.Header.Set("Accept", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	events := watchcodec.NewDecoder(jsonEvents(t, answer.Body), newCodec().factory.UniversalDeserializer())
	for _, name := range []string{"one", "two"} {
		send <- `{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"` + name + `","finalizers":["x"]}}}`
		_, obj, err := events.Decode()
		if o, ok := obj.(*metav1.PartialObjectMetadata); err != nil || !ok || o.Name != name || len(o.Finalizers) > 0 {
			t.Fatalf("got %+v, %v", obj, err)
		}
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the workspace's watch did not end with its client")
	}
}

// An undecodable event ends the watch: passed on, it could contain owners; dropped, the
// client would never know.
func TestCollectorWatchInvalidEvent(t *testing.T) {
	ended := make(chan error, 1)
	h := newHandlerFixture(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for {
			if _, err := io.WriteString(w, `{"type":"ADDED","object":{"kind":"Gadget","apiVersion":"shop.example.com/v1","metadata":{"ownerReferences":[]}}}`+"\n"); err != nil {
				ended <- err
				return
			}
		}
	})
	if w := h.serve(h.request("GET", gadgets+"?watch=1", collectorHeaders...)); w.Body.Len() > 0 {
		t.Errorf("forwarded %s", w.Body)
	}
	if err := <-ended; err == nil {
		t.Error("the workspace's writer got no error")
	}
}

func jsonEvents(t *testing.T, body io.ReadCloser) streaming.Decoder {
	t.Helper()
	info, err := newCodec().serializer(runtime.ContentTypeJSON)
	if err != nil {
		t.Fatal(err)
	}
	return streaming.NewDecoder(info.StreamSerializer.Framer.NewFrameReader(body), info.StreamSerializer.Serializer)
}
