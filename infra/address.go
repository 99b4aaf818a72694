package infra

import (
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/reference"
)

// addressOf returns the plan address of a reference.
func addressOf(ref reference.Ref) change.Address {
	return change.Address{Namespace: ref.Namespace, Type: ref.Type, Name: ref.Name, Data: ref.Kind == reference.Data}
}

// refOf returns the reference of an address; for a deposed resource, that of its successor.
func refOf(address change.Address) reference.Ref {
	if apiVersion, kind, ok := address.Workload(); ok {
		return reference.Ref{Kind: reference.Kubernetes, APIVersion: apiVersion, Type: kind, Namespace: address.Namespace, Name: address.Name}
	}
	ref := reference.Ref{Kind: reference.Resource, Type: address.Type, Namespace: address.Namespace, Name: address.Name}
	if address.Data {
		ref.Kind = reference.Data
	}
	return ref
}
