package scaleschedules

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// typesMaxAge is how long a list of served types is used. A CustomResourceDefinition may change.
const typesMaxAge = time.Minute

// servedTypes are the types that the control plane serves. Many schedules are due at the same time.
type servedTypes struct {
	api   rest.Interface
	clock clock.PassiveClock

	mu       sync.Mutex
	versions map[string]servedVersion
}

type servedVersion struct {
	read time.Time
	// resources are the plural names by kind, and scalable those with a subresource scale.
	resources map[string]string
	scalable  map[string]bool
}

func newServedTypes(session *fleet.Session) *servedTypes {
	return &servedTypes{api: session.Kube.Discovery().RESTClient(), clock: session.Clock, versions: map[string]servedVersion{}}
}

// find returns the resource of a target's kind, and whether it has a subresource scale.
func (s *servedTypes) find(ctx context.Context, t *v1alpha1.ScaleTarget) (schema.GroupVersionResource, bool, error) {
	gv, err := schema.ParseGroupVersion(t.APIVersion)
	if err != nil {
		return schema.GroupVersionResource{}, false, refuse(v1alpha1.ReasonScaleInvalid, err)
	}
	s.mu.Lock()
	v, known := s.versions[t.APIVersion]
	s.mu.Unlock()
	if resource, served := v.resources[t.Kind]; known && served && s.clock.Since(v.read) < typesMaxAge {
		return gv.WithResource(resource), v.scalable[resource], nil
	}
	if v, err = s.read(ctx, gv); err != nil {
		return schema.GroupVersionResource{}, false, fmt.Errorf("discover the resources of %s: %w", gv, err)
	}
	s.mu.Lock()
	if len(s.versions) > 256 {
		clear(s.versions)
	}
	s.versions[t.APIVersion] = v
	s.mu.Unlock()
	resource, served := v.resources[t.Kind]
	if !served {
		return schema.GroupVersionResource{}, false, refuse(v1alpha1.ReasonScaleNotFound,
			fmt.Errorf("the control plane serves no %s in %s: correct spec.target, or install its CustomResourceDefinition", t.Kind, t.APIVersion))
	}
	return gv.WithResource(resource), v.scalable[resource], nil
}

func (s *servedTypes) read(ctx context.Context, gv schema.GroupVersion) (servedVersion, error) {
	out := servedVersion{read: s.clock.Now(), resources: map[string]string{}, scalable: map[string]bool{}}
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	var list metav1.APIResourceList
	if err := s.api.Get().AbsPath(path).Do(ctx).Into(&list); err != nil && !apierrors.IsNotFound(err) {
		return out, err
	}
	for _, r := range list.APIResources {
		if resource, sub, is := strings.Cut(r.Name, "/"); !is {
			out.resources[r.Kind] = r.Name
		} else if sub == "scale" {
			out.scalable[resource] = true
		}
	}
	return out, nil
}
