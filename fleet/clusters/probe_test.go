package clusters

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestPatience: y is a probe that finds the cluster ready, n one that does not.
func TestPatience(t *testing.T) {
	tests := []struct {
		name, probes string
		presumed     bool
		want         string // the verdict after each probe: y, n, or ? for none yet
	}{
		{"the first probe counts", "n", false, "n"},
		{"one failure is none", "ynyny", false, "yyyyy"},
		{"three in a row are", "ynnn", false, "yyyn"},
		{"one success is enough", "ynnny", false, "yyyny"},
		{"a new leader has patience too", "nnn", true, "??n"},
		{"and believes what it sees", "ynn", true, "yyy"},
	}
	for _, tt := range tests {
		h := health{presumed: tt.presumed}
		got := ""
		for i, p := range tt.probes {
			r := result{at: time.Unix(int64(i+1), 0), ready: p == 'y', reason: v1alpha1.ReasonClusterUnreachable}
			if r.ready {
				r.reason = v1alpha1.ReasonClusterReady
			}
			h.add(r)
			switch {
			case h.last.at.IsZero():
				got += "?"
			case h.last.ready:
				got += "y"
			default:
				got += "n"
			}
			if !h.probed.Equal(r.at) {
				t.Errorf("%s: probe %d is not remembered", tt.name, i)
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s gives %s, want %s", tt.name, tt.probes, got, tt.want)
		}
	}
}

func TestProbe(t *testing.T) {
	answers := map[string]struct {
		status int
		body   string
	}{
		"/version":                       {200, `{"gitVersion":"v1.2.3"}`},
		"/api/v1/namespaces/kube-system": {200, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"id-1"}}`},
	}
	tests := []struct {
		name   string
		status int
		body   string
		ready  bool
		reason string
		says   string
	}{
		{"ready", 200, "ok", true, v1alpha1.ReasonClusterReady, "ready"},
		{"not ready", 500, "[-]etcd failed", false, v1alpha1.ReasonClusterNotReady, "[-]etcd failed"},
		{"expired", 401, "", false, v1alpha1.ReasonInvalidKubeConfig, "atoll join"},
		{"forbidden", 403, "", false, v1alpha1.ReasonInvalidKubeConfig, "grant"},
	}
	for _, tt := range tests {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, ok := answers[r.URL.Path]
			if !ok {
				a.status, a.body = tt.status, tt.body
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(a.status)
			_, _ = w.Write([]byte(a.body))
		}))
		member := typedcorev1.NewForConfigOrDie(&rest.Config{Host: server.URL})
		r := probe(context.Background(), member, result{}, false)
		if r.ready != tt.ready || r.reason != tt.reason || !strings.Contains(r.message, tt.says) {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if tt.ready && (r.version != "v1.2.3" || r.id != "id-1") {
			t.Errorf("%s: %+v, want version and id", tt.name, r)
		}
		server.Close()
		if r := probe(context.Background(), member, result{}, false); r.reason != v1alpha1.ReasonClusterUnreachable {
			t.Errorf("%s, stopped: %+v", tt.name, r)
		}
	}
}

// TestProbeAsksWhoOnce: a probe is one request where it is known which version answers,
// unless it is to make sure.
func TestProbeAsksWhoOnce(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"gitVersion":"v1.2.4"}`))
	}))
	defer server.Close()
	member := typedcorev1.NewForConfigOrDie(&rest.Config{Host: server.URL})
	known := result{ready: true, version: "v1.2.3", id: "id-1"}
	if r := probe(t.Context(), member, known, false); !r.ready || r.version != "v1.2.3" || r.id != "id-1" || len(asked) != 1 {
		t.Errorf("%+v after %v", r, asked)
	}
	if r := probe(t.Context(), member, known, true); !r.ready || r.version != "v1.2.4" || len(asked) != 3 {
		t.Errorf("%+v after %v", r, asked)
	}
}
