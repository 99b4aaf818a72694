package aggregate

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	account = "system:serviceaccount:kube-system:"
	agent   = "kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/1a2b3c4/"
	// The Accept header of client-go's metadata client.
	metadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)

func TestIdentifyController(t *testing.T) {
	for _, c := range []struct {
		user, agent string
		want        controller
	}{
		{account + "namespace-controller", agent + account + "namespace-controller", namespaceController},
		{account + "namespace-controller", "anything", namespaceController},
		{account + "generic-garbage-collector", "", collector},
		{"system:kube-controller-manager", agent + "namespace-controller", namespaceController},
		{"system:kube-controller-manager", agent + "generic-garbage-collector", collector},
		{"system:kube-controller-manager", agent + "metadata-informers", collector},
		{"system:kube-controller-manager", agent + "storage-version-migrator-controller", migrator},
		{"system:k3s-controller", "k3s/v1.36.3+k3s1 (linux/amd64) kubernetes/1a2b3c4/generic-garbage-collector", collector},
		{"system:kube-controller-manager", agent + "horizontal-pod-autoscaler", none},
		{"system:kube-controller-manager", agent + "shared-informers", none},
		{"alice", "kubectl/v1.36.3 (linux/amd64) kubernetes/1a2b3c4", none},
		{"system:serviceaccount:ops:namespace-controller", "operator/v1", none},
		{"alice", "namespace-controller", none},
	} {
		if got := identifyController(c.user, c.agent); got != c.want {
			t.Errorf("recognise(%q, %q) = %d, want %d", c.user, c.agent, got, c.want)
		}
	}
}

// deleted is a workspace that executes every request.
func deleted(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success","code":200,"message":"by the workspace"}`)
}

func TestNamespaceControllerDeletesNothing(t *testing.T) {
	for name, who := range map[string][]string{
		"by its account":    {"X-Remote-User", account + "namespace-controller"},
		"by its user agent": {"X-Remote-User", "system:kube-controller-manager", "User-Agent", agent + "namespace-controller"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandlerFixture(t, deleted)
			w := h.serve(h.request("DELETE", gadgets, who...))
			var s metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != http.StatusOK || s.Status != metav1.StatusSuccess {
				t.Fatalf("answered %d %s", w.Code, w.Body)
			}

			for _, c := range []struct{ accept, contentType, kind string }{
				{metadataList, "application/vnd.kubernetes.protobuf", "PartialObjectMetadataList"},
				{strings.Split(metadataList, ",")[1], "application/json", "PartialObjectMetadataList"},
				{"application/cbor;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + strings.Split(metadataList, ",")[1], "application/json", "PartialObjectMetadataList"},
				{"application/json", "application/json", ""},
			} {
				w := h.serve(h.request("GET", gadgets, append(who, "Accept", c.accept)...))
				if w.Code != http.StatusOK || w.Header().Get("Content-Type") != c.contentType {
					t.Fatalf("listed: %d %q %s", w.Code, w.Header().Get("Content-Type"), w.Body)
				}
				if c.kind == "" {
					if !strings.Contains(w.Body.String(), `"items":[]`) {
						t.Errorf("listed %s", w.Body)
					}
					continue
				}
				obj, err := newCodec().decode(w.Body.Bytes())
				if list, ok := obj.(*metav1.PartialObjectMetadataList); err != nil || !ok || len(list.Items) != 0 || list.Continue != "" {
					t.Errorf("listed %+v, %v", obj, err)
				}
			}
			for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
				path := gadgets + "/one"
				if method == "POST" {
					path = gadgets
				}
				h.refused(h.serve(h.request(method, path, who...)), http.StatusForbidden, "namespace controller is refused")
			}
		})
	}
}

// The guard applies to the controller, not to all users with its permissions.
func TestOthersDelete(t *testing.T) {
	h := newHandlerFixture(t, deleted)
	if w := h.serve(h.request("DELETE", gadgets)); !strings.Contains(w.Body.String(), "by the workspace") {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

func TestMigratorRewritesNothing(t *testing.T) {
	h := newHandlerFixture(t, deleted)
	who := []string{"X-Remote-User", "system:kube-controller-manager", "User-Agent", agent + "storage-version-migrator-controller"}
	h.refused(h.serve(h.request("PATCH", gadgets+"/one", who...)), http.StatusForbidden, "storage version migrator is refused")
	if w := h.serve(h.request("GET", gadgets, who...)); w.Code != http.StatusOK || len(h.asked) != 1 {
		t.Errorf("a list was answered %d", w.Code)
	}
}

func TestCollectorWritesNothing(t *testing.T) {
	for _, who := range [][]string{
		{"X-Remote-User", account + "generic-garbage-collector"},
		{"X-Remote-User", "system:kube-controller-manager", "User-Agent", agent + "generic-garbage-collector"},
	} {
		h := newHandlerFixture(t, deleted)
		for _, method := range []string{"PUT", "PATCH", "DELETE"} {
			h.refused(h.serve(h.request(method, gadgets+"/one", who...)), http.StatusForbidden, "garbage collector is refused")
		}
		h.refused(h.serve(h.request("DELETE", gadgets, who...)), http.StatusForbidden, "deletecollection")
		h.refused(h.serve(h.request("GET", gadgets+"/one/scale", who...)), http.StatusForbidden, "garbage collector")
		for _, query := range []string{"?labelSelector=app%3Dshop", "?watch=true&labelSelector=app%3Dshop", "?fieldSelector=spec.password%3Dx", "?fieldSelector=metadata.name%3Done,spec.password!%3Dx"} {
			h.refused(h.serve(h.request("GET", gadgets+query, who...)), http.StatusForbidden, "garbage collector")
		}
	}
}

// A collector's additional permissions depend on its user: a user agent proves nothing.
func TestCollectorGroup(t *testing.T) {
	for _, c := range []struct {
		user, agent string
		want        bool
	}{
		{account + "generic-garbage-collector", "x", true},
		{"system:kube-controller-manager", agent + "metadata-informers", true},
		{"alice", agent + "generic-garbage-collector", false},
		{"system:kube-controller-manager", agent + "shared-informers", false},
	} {
		h := newHandlerFixture(t, deleted)
		h.serve(h.request("GET", gadgets, "X-Remote-User", c.user, "User-Agent", c.agent))
		u, _ := request.UserFrom(h.asked[0].Context())
		if got := slices.Contains(u.GetGroups(), GroupCollectors); got != c.want {
			t.Errorf("%s as %s: in %v", c.user, c.agent, u.GetGroups())
		}
	}
}
