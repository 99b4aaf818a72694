package apistore

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/schema"
)

// States stores states as ResourceStates. It implements infra.StateStore.
type States struct {
	api controllers.Client[v1alpha1.ResourceState]
}

// NewStates returns States that write through the given client.
func NewStates(client dynamic.Interface) *States {
	return &States{api: controllers.NewClient[v1alpha1.ResourceState](client, v1alpha1.ResourceStateResource, "ResourceState", FieldManager)}
}

// name returns the ResourceState's name. It depends only on the state's owner, so that a state keeps its name
// when no provider serves its type any more.
func (s *States) name(state *infra.State) (string, error) {
	owner := state.Spec.Object
	provider, is := strings.CutSuffix(owner.Group, "."+v1alpha1.ProvidersDomain)
	if !is || owner.Kind == "" || owner.Name == "" {
		return "", fmt.Errorf("the state of %s has an invalid spec.object: group %q, kind %q, name %q", state.Ref, owner.Group, owner.Kind, owner.Name)
	}
	return v1alpha1.StateName(schema.Plural(owner.Kind), provider, owner.Name), nil
}

// Put stores a state, as infra.StateStore describes.
func (s *States) Put(ctx context.Context, state *infra.State) (*infra.State, error) {
	name, err := s.name(state)
	if err != nil {
		return nil, err
	}
	object := &v1alpha1.ResourceState{
		ObjectMeta: metav1.ObjectMeta{Namespace: state.Ref.Namespace, Name: name, UID: types.UID(state.UID), ResourceVersion: state.ResourceVersion},
		Spec:       state.Spec,
	}
	var stored *v1alpha1.ResourceState
	if state.ResourceVersion == "" {
		object.UID = ""
		stored, err = s.api.Create(ctx, state.Ref.Namespace, object)
	} else {
		stored, err = s.api.Update(ctx, state.Ref.Namespace, object)
	}
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), state.ResourceVersion != "" && apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the state of %s: %w", state.Ref, infra.ErrStale)
	case err != nil:
		return nil, fmt.Errorf("store the state of %s: %w", state.Ref, redacted(err))
	}
	return &infra.State{Ref: state.Ref, UID: string(stored.UID), ResourceVersion: stored.ResourceVersion, Spec: stored.Spec}, nil
}

// Delete removes a state, as infra.StateStore describes.
func (s *States) Delete(ctx context.Context, state *infra.State) error {
	name, err := s.name(state)
	if err != nil {
		return err
	}
	err = s.api.Delete(ctx, state.Ref.Namespace, name, types.UID(state.UID), state.ResourceVersion)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("the state of %s: %w", state.Ref, infra.ErrStale)
	case err != nil:
		return fmt.Errorf("delete the state of %s: %w", state.Ref, redacted(err))
	}
	return nil
}
