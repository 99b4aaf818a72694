package join

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// TestBootstrapOfExistingCluster: only a Cluster in mode Pull gets another credential by a token.
func TestBootstrapOfExistingCluster(t *testing.T) {
	cluster := func(mode string, leaving bool) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "north"}, "spec": map[string]any{"mode": mode}}}
		if leaving {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
		}
		return u
	}
	for want, c := range map[string]*unstructured.Unstructured{
		"":                                    cluster("Pull", false),
		"still leaving":                       cluster("Pull", true),
		"Cluster north is in mode Push":       cluster("", false),
		"join north --mode pull`, without --": cluster("Push", false),
	} {
		err := checkBootstrap(c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", c, err, want)
		}
	}
}

func TestBootstrapChecksItsArguments(t *testing.T) {
	for want, try := range map[string]struct {
		name string
		ttl  time.Duration
	}{"not a valid cluster name": {"North", time.Hour}, "--token-ttl -1h0m0s": {"north", -time.Hour}} {
		if _, err := Bootstrap(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, try.name, try.ttl, false, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", try, err, want)
		}
	}
}
