package coordination

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// LeaseResource is the shared kind Lease. It is Atoll's own kind because
// coordination.k8s.io is built into every cluster and cannot be shared.
var LeaseResource = schema.GroupVersionResource{Group: "coordination.atoll.dev", Version: "v1alpha1", Resource: "leases"}

const leaseKind = "Lease"

// object is a Lease of the dynamic client. The lock uses the Go type of
// coordination.k8s.io, which has the same fields.
type object = *unstructured.Unstructured

func leaseFrom(obj object) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, lease); err != nil {
		return nil, fmt.Errorf("read Lease %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	return lease, nil
}

func leaseTo(lease *coordinationv1.Lease) (object, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(lease)
	if err != nil {
		return nil, fmt.Errorf("write Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	obj := &unstructured.Unstructured{Object: fields}
	obj.SetAPIVersion(LeaseResource.GroupVersion().String())
	obj.SetKind(leaseKind)
	return obj, nil
}

// holder returns the holder of a lease, or "".
func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// transitions returns how often a lease has changed holders.
func transitions(lease *coordinationv1.Lease) int32 {
	if lease.Spec.LeaseTransitions == nil {
		return 0
	}
	return *lease.Spec.LeaseTransitions
}
