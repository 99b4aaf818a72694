package syncer

import (
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func memberNamespace() *unstructured.Unstructured {
	ns := object("v1", "Namespace", "", "shop", "ns-uid", nil)
	ns.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true"})
	ns.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "east"})
	return ns
}

// TestUnlistedGroupHoldsNoBinding: one group of the member cannot be listed, as when the program
// behind an aggregated API is down. The namespace stays, because it may not be empty, but the
// binding of its last object goes. The namespace goes when the group can be listed again.
func TestUnlistedGroupHoldsNoBinding(t *testing.T) {
	for name, start := range map[string]func(s *fixture){
		"the last object is gone": func(s *fixture) {
			s.start(objects(binding(false, &v1alpha1.ClusterState{UID: "object-uid"})), objects(memberNamespace()))
			s.eventually("the binding has no entry", func() bool { return s.state().Name == "" })
		},
		"an earlier syncer left the namespace": func(s *fixture) {
			s.start(nil, objects(memberNamespace()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var down, refused atomic.Bool
			down.Store(true)
			s := &fixture{t: t, refuse: func(r fakeapi.Request) *metav1.Status {
				if !down.Load() || r.Verb != "list" || r.Resource != widgets || r.Namespace != "shop" {
					return nil
				}
				refused.Store(true)
				return &apierrors.NewServiceUnavailable("the backend does not respond").ErrStatus
			}}
			start(s)
			s.eventually("the group was asked for", refused.Load)
			if s.member.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop") == nil {
				t.Fatal("the namespace was deleted, although it is not known to be empty")
			}
			down.Store(false)
			s.eventually("the namespace is gone", func() bool {
				return s.member.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop") == nil
			})
		})
	}
}
