package apiserver_test

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestServices: each Service gets the address that clients wait for, and the API server's own
// Service exists.
func TestServices(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.WorkloadAPIs = true
	server := startServer(t, keyspace, files, "sole")
	defer func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	}()
	exists := func(what, namespace, name string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := server.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	exists("at the first start", metav1.NamespaceDefault, "kubernetes")
	if err := server.client.CoreV1().Services(metav1.NamespaceDefault).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	exists("after a user deleted it", metav1.NamespaceDefault, "kubernetes")

	services := server.client.CoreV1().Services(metav1.NamespaceDefault)
	ports := []v1.ServicePort{{Port: 80}}
	dual := v1.IPFamilyPolicyRequireDualStack
	for _, tt := range []struct {
		name string
		spec v1.ServiceSpec
		want []string
	}{
		{"plain", v1.ServiceSpec{Ports: ports}, []string{v1alpha1.ServiceAddress("default", "plain", false)}},
		{"six", v1.ServiceSpec{Ports: ports, IPFamilies: []v1.IPFamily{v1.IPv6Protocol}}, []string{v1alpha1.ServiceAddress("default", "six", true)}},
		{"dual", v1.ServiceSpec{Ports: ports, IPFamilyPolicy: &dual, IPFamilies: []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}},
			[]string{v1alpha1.ServiceAddress("default", "dual", true), v1alpha1.ServiceAddress("default", "dual", false)}},
		{"balanced", v1.ServiceSpec{Ports: ports, Type: v1.ServiceTypeLoadBalancer}, []string{v1alpha1.ServiceAddress("default", "balanced", false)}},
		{"headless", v1.ServiceSpec{Ports: ports, ClusterIP: v1.ClusterIPNone}, []string{v1.ClusterIPNone}},
		{"chosen", v1.ServiceSpec{Ports: ports, ClusterIP: "10.96.0.7"}, []string{"10.96.0.7"}},
		{"external", v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com"}, nil},
	} {
		made, err := services.Create(t.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: tt.name}, Spec: tt.spec}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !slices.Equal(made.Spec.ClusterIPs, tt.want) || len(tt.want) > 0 && made.Spec.ClusterIP != tt.want[0] {
			t.Errorf("%s: the addresses are %q and %q, want %q", tt.name, made.Spec.ClusterIP, made.Spec.ClusterIPs, tt.want)
		}
		// An update that omits the addresses, as kubectl apply's does, keeps them.
		made.Spec.ClusterIP, made.Spec.ClusterIPs = "", nil
		made.Labels = map[string]string{"a": "b"}
		again, err := services.Update(t.Context(), made, metav1.UpdateOptions{})
		if err != nil {
			t.Errorf("%s: update: %v", tt.name, err)
			continue
		}
		if !slices.Equal(again.Spec.ClusterIPs, tt.want) {
			t.Errorf("%s: after an update the addresses are %q, want %q", tt.name, again.Spec.ClusterIPs, tt.want)
		}
	}
	// The address is immutable, as in a cluster.
	plain, err := services.Get(t.Context(), "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	plain.Spec.ClusterIP, plain.Spec.ClusterIPs = "10.96.0.8", []string{"10.96.0.8"}
	if _, err := services.Update(t.Context(), plain, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("changing the address: %v", err)
	}
	// Without an address there is none to keep.
	if plain, err = services.Get(t.Context(), "plain", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	plain.Spec.Type, plain.Spec.ExternalName = v1.ServiceTypeExternalName, "example.com"
	if plain, err = services.Update(t.Context(), plain, metav1.UpdateOptions{}); err != nil || plain.Spec.ClusterIP != "" {
		t.Errorf("as an ExternalName: %v, address %q", err, plain.Spec.ClusterIP)
	}
}
