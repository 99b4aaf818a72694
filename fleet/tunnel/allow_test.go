package tunnel

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLevels: what a syncer passes on at which level. Anything unknown needs the highest.
func TestLevels(t *testing.T) {
	const (
		metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		// As client-go sends it.
		partly = metadata + ",application/json"
	)
	for _, tt := range []struct {
		method, path, accept string
		want                 Level
	}{
		{"GET", "/api", "", Read},
		{"GET", "/api/v1", "", Read},
		{"GET", "/apis", "", Read},
		{"GET", "/apis/apps/v1", "", Read},
		{"GET", "/version", "", Read},
		{"POST", "/version", "", All},
		{"GET", "/metrics", "", All},
		{"GET", "/api/v1/pods?watch=true", "", Read},
		{"GET", "/api/v1/namespaces/shop/pods", "", Read},
		{"GET", "/api/v1/namespaces/shop/pods/a", "", Read},
		{"GET", "/api/v1/namespaces/shop/pods/a/log?follow=true", "", Read},
		{"POST", "/api/v1/namespaces/shop/pods", "", All},
		{"PUT", "/api/v1/namespaces/shop/pods/a", "", All},
		{"DELETE", "/api/v1/namespaces/shop/pods", "", All},
		{"DELETE", "/api/v1/namespaces/shop/pods/a", "", Pods},
		{"PATCH", "/api/v1/namespaces/shop/pods/a", "", Pods},
		{"PATCH", "/api/v1/namespaces/shop/pods/a/status", "", All},
		{"PATCH", "/api/v1/namespaces/shop/pods/a/ephemeralcontainers", "", Pods},
		{"POST", "/api/v1/namespaces/shop/pods/a/exec?command=sh", "", Pods},
		{"GET", "/api/v1/namespaces/shop/pods/a/exec?command=sh", "", Pods},
		{"POST", "/api/v1/namespaces/shop/pods/a/attach", "", Pods},
		{"GET", "/api/v1/namespaces/shop/pods/a/portforward", "", Pods},
		{"POST", "/api/v1/namespaces/shop/pods/a/eviction", "", Pods},
		{"POST", "/api/v1/namespaces/shop/pods/a/binding", "", All},
		{"PUT", "/api/v1/namespaces/shop/pods/a/proxy/x//y/../z%2f", "", Pods},
		{"GET", "/api/v1/namespaces/shop/pods/a/../../secrets/b", "", All},
		{"GET", "/api/v1/namespaces/shop/pods/..%2Fsecrets", "", All},
		{"GET", "/api/v1/namespaces/../pods/a/log", "", All},
		{"GET", "/api/v1/namespaces/shop/services/http:web:80/proxy/", "", Pods},
		{"GET", "/api/v1/namespaces/shop/services/web", "", All},
		{"GET", "/api/v1/nodes", "", Read},
		{"GET", "/api/v1/nodes/n/proxy/pods", "", All},
		{"DELETE", "/api/v1/nodes/n", "", All},
		{"GET", "/api/v1/namespaces/shop/events", "", Read},
		{"GET", "/apis/metrics.k8s.io/v1beta1/pods", "", Read},
		{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", "", Read},
		{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a", "", Read},
		{"GET", "/apis/metrics.k8s.io/v1beta1/nodes", "", Read},
		{"GET", "/apis/metrics.k8s.io/v1beta1/nodes/n/proxy", "", All},
		{"GET", "/apis/metrics.k8s.io/v1beta1/others", "", All},
		{"DELETE", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a", "", All},
		{"GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/a/requests", "", All},
		{"GET", "/api/v1/namespaces/shop/secrets/s", "", All},
		{"GET", "/api/v1/namespaces/shop/secrets/s", metadata, All},
		{"GET", "/api/v1/namespaces/shop/configmaps", metadata, All},
		{"GET", "/api/v1/namespaces/shop/replicationcontrollers/r", metadata, Read},
		{"GET", "/apis/apps/v1/namespaces/shop/replicasets/r", metadata, Read},
		{"GET", "/apis/apps/v1/namespaces/shop/replicasets", metadata, Read},
		{"GET", "/apis/apps/v1/namespaces/shop/replicasets/r", "", All},
		{"GET", "/apis/apps/v1/namespaces/shop/replicasets/r", partly, Read},
		{"GET", "/apis/apps/v1/namespaces/shop/replicasets/r", "application/json", All},
		{"PATCH", "/apis/apps/v1/namespaces/shop/replicasets/r", metadata, All},
		{"GET", "/apis/example.com/v1/gadgets/g", metadata, Read},
		{"GET", "/", "", All},
		{"GET", "/healthz", "", All},
	} {
		r := httptest.NewRequest(tt.method, tt.path, http.NoBody)
		if tt.accept != "" {
			r.Header.Set("Accept", tt.accept)
		}
		got, accept := describe(r).needs()
		if got != tt.want {
			t.Errorf("%s %s (accept %q) needs %s, want %s", tt.method, tt.path, tt.accept, got, tt.want)
		}
		if tt.accept != "" && got == Read && accept != metadata {
			t.Errorf("%s %s (accept %q) is passed on with %q", tt.method, tt.path, tt.accept, accept)
		}
	}
	if None.includes(Read) || !Read.includes(Read) || !All.includes(Pods) || Read.includes(Pods) {
		t.Error("the levels are not ascending")
	}
	if _, err := ParseLevel("some"); err == nil {
		t.Error("a level that does not exist is accepted")
	}
}
