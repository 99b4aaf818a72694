package infra

import (
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// AddressOf returns the plan address of a reference.
func AddressOf(ref expr.Ref) change.Address {
	return change.Address{Namespace: ref.Namespace, Type: ref.Type, Name: ref.Name, Data: ref.Kind == expr.Data}
}

// RefOf returns the reference of an address; for a deposed resource, that of its successor.
func RefOf(address change.Address) expr.Ref {
	if apiVersion, kind, ok := address.Workload(); ok {
		return expr.Ref{Kind: expr.Kubernetes, APIVersion: apiVersion, Type: kind, Namespace: address.Namespace, Name: address.Name}
	}
	ref := expr.Ref{Kind: expr.Resource, Type: address.Type, Namespace: address.Namespace, Name: address.Name}
	if address.Data {
		ref.Kind = expr.Data
	}
	return ref
}
