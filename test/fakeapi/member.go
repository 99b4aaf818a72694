package fakeapi

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Member serves the API as a cluster of a fleet does: it is ready, and reads the protobuf of typed clients.
func (s *Server) Member() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			return
		}
		if err := toJSON(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.ServeHTTP(w, r)
	})
}

// toJSON changes a request with protobuf, which a Server does not read.
func toJSON(r *http.Request) error {
	if r.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return err
	}
	obj.GetObjectKind().SetGroupVersionKind(*kind)
	if body, err = json.Marshal(obj); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Content-Type", runtime.ContentTypeJSON)
	return nil
}
