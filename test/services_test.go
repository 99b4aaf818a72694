package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/config/crd"
)

// TestServicesOfAllClusters: a Service that a user exports is reached from every cluster with workloads of its namespace, by a
// derived Service with the endpoints of all clusters. When the export is deleted, all of that is gone.
func TestServicesOfAllClusters(t *testing.T) {
	f := whole(t)
	const namespace = "exported"
	f.kubectl(t, "atoll", "create", "namespace", namespace)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
	})
	// Of the members, only west knows ServiceImports.
	f.put(t, "west", string(crd.ServiceImportCRD))
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "west", "", "delete", "crd", "serviceimports.multicluster.x-k8s.io", "--ignore-not-found", "--wait=false")
	})
	f.kubectl(t, "atoll", "create", "deployment", "web", "--image=nginx", "--replicas=6", "-n", namespace)
	f.kubectl(t, "atoll", "expose", "deployment", "web", "--port=80", "-n", namespace)
	f.put(t, "atoll", `{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: missing, namespace: `+namespace+`}}`)
	f.put(t, "atoll", `{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceExport, metadata: {name: web, namespace: `+namespace+`}}`)
	f.kubectl(t, "atoll", "wait", "serviceexport/web", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
	if out := f.kubectl(t, "atoll", "get", "serviceexport/missing", "-n", namespace, "-o", `jsonpath={.status.conditions[?(@.type=="Valid")].reason}`); out != "NoService" {
		t.Errorf("an export without a Service: %s", out)
	}
	f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s")

	var pods []string
	for _, member := range members {
		pods = append(pods, strings.Fields(f.kubectl(t, member, "get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].status.podIP}"))...)
	}
	slices.Sort(pods)
	derived := f.kubectl(t, "atoll", "get", "serviceimport/web", "-n", namespace, "-o", `jsonpath={.metadata.annotations.multicluster\.kubernetes\.io/derived-service}`)
	for _, member := range members {
		eventually(t, settle, member+" has the endpoints of all clusters", func(ctx context.Context) error {
			list, err := f.client(t, member).DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + derived})
			if err != nil {
				return err
			}
			var got []string
			for _, slice := range list.Items {
				for _, e := range slice.Endpoints {
					got = append(got, e.Addresses...)
				}
			}
			if slices.Sort(got); len(pods) != 6 || !slices.Equal(got, pods) {
				return fmt.Errorf("endpoints %v, pods %v", got, pods)
			}
			return nil
		})
		ip := f.kubectl(t, member, "get", "service", derived, "-n", namespace, "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}:{.spec.selector}:")
		if !strings.HasSuffix(ip, ":80::") || strings.HasPrefix(ip, "None") {
			t.Errorf("the derived Service of %s: %q", member, ip)
		}
	}

	eventually(t, settle, "west has the ServiceImport with its own address", func(ctx context.Context) error {
		ip, err := f.tryKubectl(ctx, "west", "", "get", "service", derived, "-n", namespace, "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		out, err := f.tryKubectl(ctx, "west", "", "get", "serviceimport", "web", "-n", namespace, "-o", "jsonpath={.spec.type}:{.spec.ips[*]}")
		if err == nil && out != "ClusterSetIP:"+ip {
			err = fmt.Errorf("%q, want the address %s", out, ip)
		}
		return err
	})

	f.kubectl(t, "atoll", "scale", "deployment/web", "--replicas=0", "-n", namespace)
	eventually(t, settle, "east has no endpoints any more", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "east", "", "get", "endpointslices", "-n", namespace, "-l", discoveryv1.LabelServiceName+"="+derived, "-o", "jsonpath={.items[*].endpoints}")
		if err == nil && strings.Contains(out, "addresses") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	f.kubectl(t, "atoll", "delete", "serviceexport/web", "-n", namespace)
	for _, where := range append([]string{"atoll"}, members...) {
		eventually(t, settle, where+" has nothing of the export", func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, where, "", "get", "services,endpointslices", "-n", namespace, "-l", "fleet.atoll.dev/imported", "-o", "name")
			if err == nil && strings.TrimSpace(out) != "" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}

	// A namespace with an export can be deleted.
	f.put(t, "atoll", `{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: web, namespace: `+namespace+`}}`)
	f.kubectl(t, "atoll", "wait", "serviceexport/web", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
	f.kubectl(t, "atoll", "delete", "namespace", namespace, "--timeout=60s")
}
