package kinds

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"
)

// openAPIPath is where OpenAPI v3 is served.
const openAPIPath = "/openapi/v3"

// kindDocuments caches the OpenAPI documents that clients have requested.
type kindDocuments struct {
	// building serializes the building of documents: a large one takes a second of CPU.
	building sync.Mutex
	mu       sync.Mutex
	built    map[schema.GroupVersion]*kindDocument
}

// kindDocument is the OpenAPI document of a version of a group. It is kept compressed:
// a large group would take tens of megabytes, and nearly all clients accept gzip.
type kindDocument struct {
	hash    string
	gzipped []byte
	used    time.Time
}

func (d *kindDocuments) get(gv schema.GroupVersion, hash string, now time.Time) *kindDocument {
	d.mu.Lock()
	defer d.mu.Unlock()
	document := d.built[gv]
	if document == nil || document.hash != hash {
		return nil
	}
	document.used = now
	return document
}

func (d *kindDocuments) keep(gv schema.GroupVersion, document *kindDocument) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.built[gv] = document
}

// retain drops documents of versions that are no longer served.
func (d *kindDocuments) retain(kubernetes string, table *kindTable) {
	d.remove(func(gv schema.GroupVersion, document *kindDocument) bool {
		version, ok := table.versions[gv]
		return !ok || documentHash(kubernetes, version) != document.hash
	})
}

// forget drops documents that have not been requested since then.
func (d *kindDocuments) forget(since time.Time) {
	d.remove(func(_ schema.GroupVersion, document *kindDocument) bool { return document.used.Before(since) })
}

func (d *kindDocuments) remove(which func(schema.GroupVersion, *kindDocument) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for gv, document := range d.built {
		if which(gv, document) {
			delete(d.built, gv)
		}
	}
}

// documentHash identifies a document before it is built, so that the list of all
// documents, which has their hashes, builds none. The Kubernetes version is part of it,
// because another version builds another document from the same revision.
func documentHash(kubernetes string, v servedVersion) string {
	sum := sha256.Sum256([]byte(kubernetes + "\x00" + v.Name + "\x00" + v.Revision))
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

// serveOpenAPI answers requests for OpenAPI v3. The aggregating server polls the list
// of documents every second, merges it with the others, and forwards requests for these
// documents.
func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == openAPIPath {
		list := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
		for gv, version := range s.table.Load().versions {
			list.Paths["apis/"+gv.String()] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: documentURL(gv, documentHash(s.version, version))}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // an error means that the client has gone
		return true
	}
	path, ok := strings.CutPrefix(r.URL.Path, openAPIPath+"/apis/")
	if !ok {
		return false
	}
	gv, err := schema.ParseGroupVersion(path)
	version, ok := s.table.Load().versions[gv]
	if err != nil || !ok {
		return false
	}
	hash := documentHash(s.version, version)
	if asked := r.URL.Query().Get("hash"); asked != "" && asked != hash {
		http.Redirect(w, r, documentURL(gv, hash), http.StatusMovedPermanently)
		return true
	}
	if writesObjects(r) {
		s.writePatches(w, r, gv, version)
		return true
	}
	if etag := strconv.Quote(hash); r.Header.Get("If-None-Match") == etag {
		w.Header().Set("Etag", etag)
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	document, err := s.document(gv, version, hash)
	if err == nil {
		err = s.write(w, r, document)
	}
	if err != nil {
		klog.ErrorS(err, "cannot serve OpenAPI document", "groupVersion", gv)
		responsewriters.WriteRawJSON(http.StatusServiceUnavailable,
			apierrors.NewServiceUnavailable(fmt.Sprintf("the OpenAPI document of %s cannot be built: %v", gv, err)).ErrStatus, w)
	}
	return true
}

// writesObjects reports whether the client is a kubectl command that writes objects.
// Such a command reads a group's whole document, and some read it twice, only to learn
// which patches and parameters PATCH of one kind supports. For a provider with 1,300
// types that is 38 MB, and four seconds of kubectl's CPU for each object.
func writesObjects(r *http.Request) bool {
	switch command, _ := strings.CutPrefix(r.Header.Get("Kubectl-Command"), "kubectl "); command {
	case "apply", "create", "replace", "patch", "edit", "diff", "delete", "label", "annotate", "scale", "set":
		return true
	}
	return false
}

// writePatches sends a document with only the PATCH operations of a group. No client
// may store it: kubectl's cache on disk does not see the header, and kubectl explain
// would find no fields.
func (s *Server) writePatches(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion, version servedVersion) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	var out io.Writer = w
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		zip := gzip.NewWriter(w)
		defer zip.Close()
		w.Header().Set("Content-Encoding", "gzip")
		out = zip
	}
	_ = writePatchDocument(out, s.version, gv, version) // an error means that the client has gone
}

func documentURL(gv schema.GroupVersion, hash string) string {
	return openAPIPath + "/apis/" + gv.String() + "?" + url.Values{"hash": {hash}}.Encode()
}

// document returns a document from the cache, or builds it.
func (s *Server) document(gv schema.GroupVersion, version servedVersion, hash string) (*kindDocument, error) {
	if document := s.openAPI.get(gv, hash, s.clock.Now()); document != nil {
		return document, nil
	}
	s.openAPI.building.Lock()
	defer s.openAPI.building.Unlock()
	if document := s.openAPI.get(gv, hash, s.clock.Now()); document != nil {
		return document, nil
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := writeDocument(zip, s.version, gv, version, s.source.Schema); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	document := &kindDocument{hash: hash, gzipped: bytes.Clone(out.Bytes()), used: s.clock.Now()}
	s.openAPI.keep(gv, document)
	return document, nil
}

// write sends a document in the encoding that the client accepts. It returns an error
// only if it has written nothing.
func (s *Server) write(w http.ResponseWriter, r *http.Request, document *kindDocument) error {
	const protobuf, deprecated = "com.github.proto-openapi.spec.v3.v1.0+protobuf", "com.github.proto-openapi.spec.v3@v1.0+protobuf"
	var forms []runtime.SerializerInfo
	for _, form := range []string{"json", protobuf, deprecated} {
		forms = append(forms, runtime.SerializerInfo{MediaType: "application/" + form, MediaTypeType: "application", MediaTypeSubType: form})
	}
	header := w.Header()
	header.Set("Vary", "Accept, Accept-Encoding")
	if r.URL.Query().Get("hash") != "" {
		header.Set("Cache-Control", "public, immutable")
		header.Set("Expires", s.clock.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	header.Set("Etag", strconv.Quote(document.hash))
	switch form, ok := negotiation.NegotiateMediaTypeOptions(r.Header.Get("Accept"), forms, negotiation.DefaultEndpointRestrictions); {
	case !ok:
		w.WriteHeader(http.StatusNotAcceptable)
	case form.Accepted.MediaTypeSubType == "json":
		header.Set("Content-Type", "application/json")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			header.Set("Content-Encoding", "gzip")
			_, _ = w.Write(document.gzipped) // an error means that the client has gone
			return nil
		}
		plain, err := gzip.NewReader(bytes.NewReader(document.gzipped))
		if err != nil {
			return err
		}
		_, _ = io.Copy(w, plain)
	default:
		plain, err := gzip.NewReader(bytes.NewReader(document.gzipped))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(plain)
		if err != nil {
			return err
		}
		message, err := handler3.ToV3ProtoBinary(text)
		if err != nil {
			return errors.Join(errors.New("encode it as protobuf"), err)
		}
		header.Set("Content-Type", "application/"+protobuf)
		_, _ = w.Write(message)
	}
	return nil
}
