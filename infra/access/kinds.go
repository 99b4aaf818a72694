package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/infra/expr"
)

// apiResource is where objects of a kind are served.
type apiResource struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// secret reports whether the objects are Secrets.
func (r apiResource) secret() bool {
	return r.gvr.GroupResource() == schema.GroupResource{Resource: "secrets"}
}

func (s *Values) find(ctx context.Context, ref expr.Ref) (apiResource, error) {
	found, err := s.lookUp(ref)
	if err == nil || !errors.Is(err, errNoKind) {
		return found, err
	}
	// The kind may be newer than the cached discovery. One refresh for each evaluation is enough.
	if r := evaluationOf(ctx); r != nil {
		r.mu.Lock()
		again := r.rediscovered
		r.rediscovered = true
		r.mu.Unlock()
		if again {
			return found, err
		}
	}
	s.discovery.Invalidate()
	return s.lookUp(ref)
}

var errNoKind = errors.New("no such kind: check kubectl api-resources")

func (s *Values) lookUp(ref expr.Ref) (apiResource, error) {
	lists, err := s.lists(ref.APIVersion)
	var all []apiResource
	var groups []string
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, r := range list.APIResources {
			if r.Kind == ref.Type && !strings.Contains(r.Name, "/") && slices.Contains([]string(r.Verbs), "get") {
				all = append(all, apiResource{gvr: gv.WithResource(r.Name), namespaced: r.Namespaced})
				groups = append(groups, fmt.Sprintf("k8s[%q].%s", list.GroupVersion, ref.Type))
			}
		}
	}
	slices.Sort(groups)
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return apiResource{}, fmt.Errorf("%s is ambiguous: use %s", ref.Type, strings.Join(groups, " or "))
	case err != nil && !apierrors.IsNotFound(err):
		return apiResource{}, fmt.Errorf("discover kind %s: %w", ref.Type, err)
	case ref.APIVersion != "":
		return apiResource{}, fmt.Errorf("%s in %s: %w", ref.Type, ref.APIVersion, errNoKind)
	}
	return apiResource{}, fmt.Errorf("%s: %w", ref.Type, errNoKind)
}

func (s *Values) lists(groupVersion string) ([]*metav1.APIResourceList, error) {
	if groupVersion == "" {
		return discovery.ServerPreferredResources(s.discovery)
	}
	list, err := s.discovery.ServerResourcesForGroupVersion(groupVersion)
	if err != nil {
		return nil, err
	}
	return []*metav1.APIResourceList{list}, nil
}
