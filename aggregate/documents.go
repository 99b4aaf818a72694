package aggregate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// discovery answers /apis with the workspace's own document, in the kind that the
// client prefers, without the groups that are not exposed to the member.
func (h *Handler) discovery(w http.ResponseWriter, in *http.Request, m *member) {
	for _, wish := range parseAccept(in.Header.Get("Accept")) {
		suffix, ok := discoveryKind(wish)
		if !ok {
			continue
		}
		// Newer servers no longer have the older kinds.
		answer := h.fetch(in, runtime.ContentTypeJSON+suffix, "")
		if answer.code == http.StatusNotAcceptable {
			continue
		}
		if answer.code != http.StatusOK {
			answer.copyTo(w)
			return
		}
		doc, err := h.codec.decode(answer.body.Bytes())
		if err == nil {
			err = m.keepExposed(doc)
		}
		if err != nil {
			writeError(w, internalError("reading the workspace's discovery document", err))
			return
		}
		body, err := h.codec.encode(wish.mediaType, doc)
		if err != nil {
			writeError(w, internalError("writing a discovery document", err))
			return
		}
		writeDocument(w, in, wish.mediaType+suffix, body)
		return
	}
	writeError(w, notAcceptable("/apis is served in JSON and protobuf, as APIGroupList or APIGroupDiscoveryList"))
}

func discoveryKind(w acceptClause) (suffix string, ok bool) {
	if w.mediaType != runtime.ContentTypeJSON && w.mediaType != runtime.ContentTypeProtobuf {
		return "", false
	}
	if w.as == "" {
		return "", true
	}
	if w.group != "apidiscovery.k8s.io" || w.as != "APIGroupDiscoveryList" || (w.version != "v2" && w.version != "v2beta1") {
		return "", false
	}
	return convertedTo("", w.as, w.group, w.version), true
}

// keepExposed removes from a discovery document the groups that are not exposed to the
// member.
func (m *member) keepExposed(doc runtime.Object) error {
	switch list := doc.(type) {
	case *metav1.APIGroupList:
		list.Groups = slices.DeleteFunc(list.Groups, func(g metav1.APIGroup) bool { return !m.groups[g.Name] })
	case *apidiscoveryv2.APIGroupDiscoveryList:
		list.Items = slices.DeleteFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return !m.groups[g.Name] })
	case *apidiscoveryv2beta1.APIGroupDiscoveryList:
		list.Items = slices.DeleteFunc(list.Items, func(g apidiscoveryv2beta1.APIGroupDiscovery) bool { return !m.groups[g.Name] })
	default:
		return fmt.Errorf("unexpected type %T", doc)
	}
	return nil
}

// openAPIV3 answers /openapi/v3, which only lists the URLs of the groups' documents.
func (h *Handler) openAPIV3(w http.ResponseWriter, in *http.Request, m *member) {
	answer := h.fetch(in, runtime.ContentTypeJSON, "")
	if answer.code != http.StatusOK {
		answer.copyTo(w)
		return
	}
	var index struct {
		Paths map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(answer.body.Bytes(), &index); err != nil {
		writeError(w, internalError("reading the workspace's index of OpenAPI documents", err))
		return
	}
	for path := range index.Paths {
		if !m.sees("/" + path) {
			delete(index.Paths, path)
		}
	}
	body, err := json.Marshal(index)
	if err != nil {
		writeError(w, internalError("writing an index of OpenAPI documents", err))
		return
	}
	writeDocument(w, in, runtime.ContentTypeJSON, body)
}

// groupDocument answers with a document of one exposed group. The workspace redirects a client that
// asks for an OpenAPI document by an outdated hash, which happens whenever a type changes between two
// requests of the client. A member's kube-apiserver rejects redirects of its backends, so the client
// gets the current document instead.
func (h *Handler) groupDocument(w http.ResponseWriter, in *http.Request) {
	query := in.URL.Query()
	if !query.Has("hash") {
		h.next.ServeHTTP(w, in)
		return
	}
	answer := &bufferedResponse{header: w.Header().Clone()}
	h.next.ServeHTTP(answer, in)
	answer.WriteHeader(http.StatusOK)
	if answer.code != http.StatusMovedPermanently && answer.code != http.StatusFound {
		answer.copyTo(w)
		return
	}
	query.Del("hash")
	current := in.Clone(in.Context())
	current.URL.RawQuery = query.Encode()
	h.next.ServeHTTP(w, current)
}

// sees reports whether a path is below a group that is exposed to the member.
func (m *member) sees(path string) bool {
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return false
	}
	group, _, _ := strings.Cut(rest, "/")
	return m.groups[group]
}

func acceptsJSON(accept string) bool {
	return slices.ContainsFunc(parseAccept(accept), func(w acceptClause) bool { return w.mediaType == runtime.ContentTypeJSON })
}
