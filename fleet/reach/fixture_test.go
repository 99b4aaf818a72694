package reach

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fixture is a control plane and its clusters.
type fixture struct {
	t       *testing.T
	control *fakeapi.Server
	members map[string]*fakeapi.Server
	fronts  map[string]*rest.Config // how to connect to each member
	tunnels *tunnels
	reach   *Reach
	client  *kubernetes.Clientset // of the control plane
	here    cache.ListerWatcherWithContext
	// streams serves the subresources of pods with streams, in all clusters.
	streams http.HandlerFunc
	// lies change the paths of requests to a cluster.
	lies map[string]*strings.Replacer
}

func isStream(path string) bool {
	return slices.ContainsFunc([]string{"/log", "/exec", "/proxy/"}, func(part string) bool { return strings.Contains(path, part) })
}

// tunnels are the addresses of syncers, by cluster: each passes requests on to its cluster.
type tunnels struct {
	mu sync.Mutex
	to map[string]string
}

func (s *tunnels) of(cluster string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address, ok := s.to[cluster]
	return address, ok
}

func (s *tunnels) Connected(_ context.Context, cluster string) bool {
	_, ok := s.of(cluster)
	return ok
}

func (s *tunnels) Dial(ctx context.Context, cluster string) (net.Conn, error) {
	address, ok := s.of(cluster)
	if !ok {
		return nil, errors.New("no tunnel of " + cluster)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// pull makes a cluster one in mode Pull, whose syncer has a tunnel.
func (f *fixture) pull(cluster string) {
	f.t.Helper()
	to, err := fleet.NewMemberProxy(f.fronts[cluster])
	if err != nil {
		f.t.Fatal(err)
	}
	syncer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to.Handler(r.URL.Path, nil).ServeHTTP(w, r)
	}))
	f.t.Cleanup(func() { syncer.CloseClientConnections(); syncer.Close() })
	f.tunnels.mu.Lock()
	f.tunnels.to[cluster] = syncer.Listener.Addr().String()
	f.tunnels.mu.Unlock()
	f.control.Change(v1alpha1.ClusterResource, "", cluster, func(c *unstructured.Unstructured) {
		c.Object["spec"] = map[string]any{"mode": "Pull"}
	})
}

func newFixture(t *testing.T, clusters ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, members: map[string]*fakeapi.Server{}, fronts: map[string]*rest.Config{}, tunnels: &tunnels{to: map[string]string{}}, lies: map[string]*strings.Replacer{}}
	f.control = fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Secret", "v1 Pod", "v1 Event", "v1 Node")...)...)
	for _, name := range clusters {
		f.join(name)
	}
	f.reach = New(func() (dynamic.Interface, error) { return f.control.Dynamic(), nil }, f.tunnels, clock.RealClock{})
	client, err := kubernetes.NewForConfig(f.control.Config())
	if err != nil {
		t.Fatal(err)
	}
	f.here = stored{client, Pods}
	f.client = client
	return f
}

// stored lists the objects of a resource that the control plane stores, with the selectors of the request.
type stored struct {
	client   *kubernetes.Clientset
	resource string
}

func (s stored) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	switch s.resource {
	case Events:
		return s.client.CoreV1().Events("").List(ctx, o)
	case Nodes:
		return s.client.CoreV1().Nodes().List(ctx, o)
	}
	return s.client.CoreV1().Pods("").List(ctx, o)
}

func (s stored) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	switch s.resource {
	case Events:
		return s.client.CoreV1().Events("").Watch(ctx, o)
	case Nodes:
		return s.client.CoreV1().Nodes().Watch(ctx, o)
	}
	return s.client.CoreV1().Pods("").Watch(ctx, o)
}

func (f *fixture) join(cluster string) {
	f.t.Helper()
	member := fakeapi.New(f.t, fakeapi.BuiltIns("v1 Pod", "v1 Event", "v1 Node", "apps/v1 Deployment", "apps/v1 ReplicaSet", "batch/v1 Job")...)
	f.members[cluster] = member
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if serve := f.streams; serve != nil && isStream(r.URL.Path) {
			serve(w, r)
			return
		}
		if lie := f.lies[cluster]; lie != nil {
			r.URL.Path = lie.Replace(r.URL.Path)
		}
		member.ServeHTTP(w, r)
	}))
	front.EnableHTTP2 = true
	front.StartTLS() // clients send no credentials without TLS
	f.t.Cleanup(func() { front.CloseClientConnections(); front.Close() })
	f.fronts[cluster] = &rest.Config{Host: front.URL, BearerToken: "t",
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})}}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: front.URL,
		CertificateAuthorityData: f.fronts[cluster].CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "t"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	data, err := clientcmd.Write(*config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.control.Put(&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: cluster},
		Type: v1alpha1.KubeconfigSecretType, Data: map[string][]byte{v1alpha1.KubeconfigSecretKey: data}})
	f.control.Put(map[string]any{"apiVersion": v1alpha1.Group + "/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": cluster},
		"spec": map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": v1alpha1.SystemNamespace, "name": cluster}}})
}

// bind places Deployment web of a namespace in clusters: the binding, and the copies with their ReplicaSets.
func (f *fixture) bind(namespace, name string, clusters ...string) {
	f.t.Helper()
	uid := types.UID("source-" + namespace + "-" + name)
	shares := []any{}
	for _, cluster := range clusters {
		shares = append(shares, map[string]any{"name": cluster})
		f.copyOf(cluster, namespace, name, uid)
	}
	f.control.Put(map[string]any{"apiVersion": v1alpha1.Group + "/v1alpha1", "kind": "ResourceBinding",
		"metadata": map[string]any{"namespace": namespace, "name": v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, name)},
		"spec":     map[string]any{"resource": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": string(uid)}, "clusters": shares}})
}

// copyOf creates a Deployment with the marks of a copy, and its ReplicaSet.
func (f *fixture) copyOf(cluster, namespace, name string, source types.UID) {
	f.t.Helper()
	member := f.members[cluster]
	deployment := member.Put(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": namespace, "name": name,
		"labels":      map[string]any{v1alpha1.ManagedLabel: "true"},
		"annotations": map[string]any{v1alpha1.ClusterAnnotation: cluster, v1alpha1.SourceUIDAnnotation: string(source)}}})
	member.Put(map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": namespace, "name": name + "-1",
		"ownerReferences": []any{owner("Deployment", name, deployment.GetUID())}}})
}

func owner(kind, name string, uid types.UID) map[string]any {
	return map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": string(uid), "controller": true}
}

func resource(group, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
}

// pod creates a pod of a ReplicaSet, or a foreign one if replicaSet is "".
func (f *fixture) pod(cluster, namespace, name, replicaSet string) {
	f.t.Helper()
	member := f.members[cluster]
	metadata := map[string]any{"namespace": namespace, "name": name, "labels": map[string]any{"app": name}}
	if replicaSet != "" {
		set := member.Get(resource("apps", "replicasets"), namespace, replicaSet)
		metadata["ownerReferences"] = []any{owner("ReplicaSet", replicaSet, set.GetUID())}
	}
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": map[string]any{"nodeName": "node-1"}})
}

func (f *fixture) list(namespace string, o metav1.ListOptions) (names []string, version string, warnings []string) {
	f.t.Helper()
	list, warnings, err := f.reach.List(f.t.Context(), Pods, namespace, f.here, o)
	if err != nil {
		f.t.Fatal(err)
	}
	pods := list.(*corev1.PodList)
	for _, pod := range pods.Items {
		names = append(names, nameOf(&pod))
	}
	return names, pods.ResourceVersion, warnings
}

func nameOf(pod *corev1.Pod) string {
	return fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.Spec.NodeName)
}
