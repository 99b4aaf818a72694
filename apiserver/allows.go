package apiserver

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Allows reports whether an authorizer gives the user of a request a verb for a cluster-scoped object.
func Allows(ctx context.Context, by authorizer.Authorizer, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return false, errors.New("the request has no user: this is a bug, please report it")
	}
	decision, _, err := by.Authorize(ctx, authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: resource.Group, APIVersion: resource.Version,
		Resource: resource.Resource, Name: name, ResourceRequest: true})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}
