package aggregate

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	askV2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	askV2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

// workspaceDiscovery answers /apis like a workspace: it does not have the older
// aggregated kind.
func workspaceDiscovery(w http.ResponseWriter, r *http.Request) {
	accept := r.Header.Get("Accept")
	switch {
	case strings.Contains(accept, "v=v2;"):
		w.Header().Set("Content-Type", accept)
		_, _ = io.WriteString(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
			{"metadata":{"name":"apps"},"versions":[{"version":"v1"}]},
			{"metadata":{"name":"shop.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[{"resource":"gadgets","scope":"Namespaced","verbs":["get"]}]}]}]}`)
	case strings.Contains(accept, "v=v2beta1;"):
		w.WriteHeader(http.StatusNotAcceptable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[
			{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}]},
			{"name":"shop.example.com","versions":[{"groupVersion":"shop.example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"shop.example.com/v1","version":"v1"}}]}`)
	}
}

func TestDiscovery(t *testing.T) {
	asProtobuf := func(s string) string { return strings.Replace(s, "json", "vnd.kubernetes.protobuf", 1) }
	for _, c := range []struct{ name, accept, contentType string }{
		{"what a kube-apiserver asks", askV2 + "," + askV2beta1, askV2},
		{"in protobuf", asProtobuf(askV2), asProtobuf(askV2)},
		{"legacy", "application/json", "application/json"},
		{"legacy in protobuf", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"},
		{"anything", "", "application/json"},
		{"a kind no longer known, or legacy", askV2beta1 + ",application/json;q=0.9", "application/json"},
		{"the better one last", "application/json;q=0.5," + askV2, askV2},
		{"an encoding that is not ours first", "application/cbor," + askV2, askV2},
		{"only a kind no longer known", askV2beta1, ""},
		{"only an encoding that is not ours", "application/yaml", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHandlerFixture(t, workspaceDiscovery)
			w := h.serve(h.request("GET", "/apis", "Accept", c.accept, "Accept-Encoding", "gzip"))
			if c.contentType == "" {
				if w.Code != http.StatusNotAcceptable {
					t.Errorf("answered %d %s", w.Code, w.Body)
				}
				return
			}
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != c.contentType {
				t.Fatalf("answered %d %q, want %q: %s", w.Code, w.Header().Get("Content-Type"), c.contentType, w.Body)
			}
			doc, err := newCodec().decode(w.Body.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			switch list := doc.(type) {
			case *metav1.APIGroupList:
				if len(list.Groups) != 1 || list.Groups[0].Name != "shop.example.com" || list.Groups[0].PreferredVersion.Version != "v1" {
					t.Errorf("groups: %+v", list.Groups)
				}
			case *apidiscoveryv2.APIGroupDiscoveryList:
				if len(list.Items) != 1 || list.Items[0].Name != "shop.example.com" || list.Items[0].Versions[0].Resources[0].Resource != "gadgets" {
					t.Errorf("groups: %+v", list.Items)
				}
			default:
				t.Errorf("unexpected type %T", doc)
			}
			if h.asked[0].Header.Get("Accept-Encoding") != "" {
				t.Error("requested an encoding that it cannot read")
			}

			again := h.serve(h.request("GET", "/apis", "Accept", c.accept, "If-None-Match", w.Header().Get("ETag")))
			if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
				t.Errorf("conditional request: status %d", again.Code)
			}
		})
	}
}

// Members of older versions ask servers that have it for the beta kind.
func TestDiscoveryBeta(t *testing.T) {
	h := newHandlerFixture(t, answerJSON(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2beta1","metadata":{},"items":[
		{"metadata":{"name":"apps"}},{"metadata":{"name":"shop.example.com"}}]}`))
	w := h.serve(h.request("GET", "/apis", "Accept", askV2beta1))
	doc, err := newCodec().decode(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	list, ok := doc.(*apidiscoveryv2beta1.APIGroupDiscoveryList)
	if !ok || len(list.Items) != 1 || list.Items[0].Name != "shop.example.com" {
		t.Errorf("groups: %+v", doc)
	}
}

// An error of the workspace is passed on unchanged, for every document.
func TestDocumentsRefused(t *testing.T) {
	for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3"} {
		h := newHandlerFixture(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Audit-Id", "7")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "no")
		})
		w := h.serve(h.request("GET", path))
		if w.Code != http.StatusForbidden || w.Body.String() != "no" || w.Header().Get("Audit-Id") != "7" {
			t.Errorf("%s: answered %d %s", path, w.Code, w.Body)
		}
	}
}

func TestOpenAPIV3(t *testing.T) {
	h := newHandlerFixture(t, answerJSON(`{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=1"},"version":{},"apis":{},"apis/apps/v1":{},
		"apis/shop.example.com":{"serverRelativeURL":"a"},"apis/shop.example.com/v1":{"serverRelativeURL":"b"},"apis/shop.example.com.evil/v1":{}}}`))
	w := h.serve(h.request("GET", "/openapi/v3"))
	if want := `{"paths":{"apis/shop.example.com":{"serverRelativeURL":"a"},"apis/shop.example.com/v1":{"serverRelativeURL":"b"}}}`; w.Body.String() != want {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

func TestOpenAPIV2(t *testing.T) {
	const whole = `{"swagger":"2.0","info":{"title":"Kubernetes","version":"v1"},
		"paths":{"/api/v1/":{"get":{"schema":{"$ref":"#/definitions/Pod"}}},
			"/apis/shop.example.com/v1/gadgets":{"get":{"schema":{"$ref":"#/definitions/GadgetList"}}}},
		"definitions":{"Pod":{},"Secret":{},"Meta":{"properties":{"self":{"$ref":"#/definitions/Meta"}}},
			"GadgetList":{"properties":{"items":{"items":{"$ref":"#/definitions/a~1Gadget"}}}},
			"a/Gadget":{"properties":{"metadata":{"allOf":[{"$ref":"#/definitions/Meta"}]}},"x-kept":[1,2.50]}},
		"securityDefinitions":{"BearerToken":{}}}`
	full := 0
	h := newHandlerFixture(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full++
		_, _ = io.WriteString(w, whole)
	})
	w := h.serve(h.request("GET", "/openapi/v2", "Accept", "application/json"))
	var doc struct {
		Swagger                                 string
		Paths, Definitions, SecurityDefinitions map[string]json.RawMessage
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("answered %d %s: %v", w.Code, w.Body, err)
	}
	if len(doc.Paths) != 1 || len(doc.Definitions) != 3 || doc.Swagger != "2.0" || len(doc.SecurityDefinitions) != 1 {
		t.Errorf("answered %s", w.Body)
	}
	if !strings.Contains(string(doc.Definitions["a/Gadget"]), `2.50`) {
		t.Errorf("a definition was changed: %s", doc.Definitions["a/Gadget"])
	}

	for range 2 {
		w = h.serve(h.request("GET", "/openapi/v2", "If-None-Match", w.Header().Get("ETag")))
		if w.Code != http.StatusNotModified {
			t.Errorf("conditional request: status %d", w.Code)
		}
	}
	if full != 1 {
		t.Errorf("read the whole document %d times", full)
	}
	if w := h.serve(h.request("GET", "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")); w.Code != http.StatusNotAcceptable {
		t.Errorf("answered %d in protobuf", w.Code)
	}
}

func TestOutdatedHash(t *testing.T) {
	h := newHandlerFixture(t, func(w http.ResponseWriter, r *http.Request) {
		if hash := r.URL.Query().Get("hash"); hash != "" && hash != "NEW" {
			http.Redirect(w, r, r.URL.Path+"?hash=NEW", http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Etag", `"NEW"`)
		_, _ = io.WriteString(w, "document")
	})
	for _, query := range []string{"", "?hash=NEW", "?hash=OLD"} {
		w := h.serve(h.request("GET", "/openapi/v3/apis/shop.example.com/v1"+query))
		if w.Code != http.StatusOK || w.Body.String() != "document" || w.Header().Get("Etag") != `"NEW"` {
			t.Errorf("%q: answered %d %s %v", query, w.Code, w.Body, w.Header())
		}
	}
}
