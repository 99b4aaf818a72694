package aggregate

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// Every member polls the document each minute, and members with the same groups get the
// same document.
const maxPruned = 64

// prunedCache caches documents that were pruned to some groups: the whole document is
// megabytes long and rarely changes.
type prunedCache struct {
	mu        sync.Mutex
	documents map[string]prunedDocument // by sorted group names
}

type prunedDocument struct {
	// etag of the unpruned document.
	etag string
	body []byte
}

func (p *prunedCache) get(groups string) prunedDocument {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.documents[groups]
}

func (p *prunedCache) put(groups string, d prunedDocument) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.documents) >= maxPruned {
		clear(p.documents)
	}
	p.documents[groups] = d
}

// openAPIV2 answers /openapi/v2 with the paths of exposed groups and the definitions
// that they refer to. It serves JSON only, which is all that a kube-apiserver asks of
// the servers behind it; to its own clients the kube-apiserver can answer in protobuf.
func (h *Handler) openAPIV2(w http.ResponseWriter, in *http.Request, m *member) {
	if !acceptsJSON(in.Header.Get("Accept")) {
		writeError(w, notAcceptable("/openapi/v2 is served only in JSON"))
		return
	}
	groups := strings.Join(slices.Sorted(maps.Keys(m.groups)), ",")
	known := h.openAPI.get(groups)
	// Always ask the workspace, so that it decides each time whether this user may read
	// the document.
	answer := h.fetch(in, runtime.ContentTypeJSON, known.etag)
	switch {
	case answer.code == http.StatusNotModified && known.etag != "":
	case answer.code == http.StatusOK:
		body, err := m.prune(answer.body.Bytes())
		if err != nil {
			writeError(w, internalError("reading the workspace's OpenAPI document", err))
			return
		}
		known = prunedDocument{answer.header.Get("ETag"), body}
		if known.etag != "" {
			h.openAPI.put(groups, known)
		}
	default:
		answer.copyTo(w)
		return
	}
	writeDocument(w, in, runtime.ContentTypeJSON, known.body)
}

// prune keeps the parts that belong to exposed groups, byte for byte.
func (m *member) prune(whole []byte) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(whole, &doc); err != nil {
		return nil, err
	}
	paths, definitions := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for name, into := range map[string]*map[string]json.RawMessage{"paths": &paths, "definitions": &definitions} {
		if part, ok := doc[name]; ok {
			if err := json.Unmarshal(part, into); err != nil {
				return nil, err
			}
		}
	}
	needed := map[string]bool{}
	var follow func(part json.RawMessage) error
	follow = func(part json.RawMessage) error {
		refs, err := references(part)
		for _, ref := range refs {
			if definition, ok := definitions[ref]; ok && !needed[ref] {
				needed[ref] = true
				if err := follow(definition); err != nil {
					return err
				}
			}
		}
		return err
	}
	for path, part := range paths {
		if !m.sees(path) {
			delete(paths, path)
			continue
		}
		if err := follow(part); err != nil {
			return nil, err
		}
	}
	for name := range definitions {
		if !needed[name] {
			delete(definitions, name)
		}
	}
	for name, part := range map[string]any{"paths": paths, "definitions": definitions} {
		body, err := json.Marshal(part)
		if err != nil {
			return nil, err
		}
		doc[name] = body
	}
	return json.Marshal(doc)
}

// references returns the definitions that a part of a document refers to.
func references(part json.RawMessage) ([]string, error) {
	var tree any
	if err := json.Unmarshal(part, &tree); err != nil {
		return nil, err
	}
	var found []string
	var walk func(any)
	walk = func(node any) {
		switch n := node.(type) {
		case []any:
			for _, child := range n {
				walk(child)
			}
		case map[string]any:
			if ref, ok := n["$ref"].(string); ok {
				if name, ok := strings.CutPrefix(ref, "#/definitions/"); ok {
					found = append(found, strings.NewReplacer("~1", "/", "~0", "~").Replace(name))
				}
			}
			for _, child := range n {
				walk(child)
			}
		}
	}
	walk(tree)
	return found, nil
}
