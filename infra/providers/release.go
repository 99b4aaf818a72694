package providers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// settles is how long after a deletion every server is sure to know of it, so that nothing
	// new is made of the Provider's types.
	settles = 3 * time.Second
	// useLooked is how often it is looked whether anything is left.
	useLooked = 5 * time.Second
	// statesPage is how many states are listed at a time.
	statesPage = 500
)

// tend does for a Provider what is left to one server.
func (t *term) tend(ctx context.Context, name string) (again time.Duration, err error) {
	p := t.provider(name)
	switch {
	case p == nil:
		return 0, nil
	case p.DeletionTimestamp != nil:
		return t.release(ctx, p)
	}
	return 0, t.permit(ctx, p)
}

// release lets a Provider go that is deleted and of which nothing is left. Else it says what is, and when to
// look again.
func (t *term) release(ctx context.Context, p *v1alpha1.Provider) (again time.Duration, err error) {
	if !slices.Contains(p.Finalizers, v1alpha1.ProviderInUseFinalizer) || t.config.Stored == nil {
		return 0, nil
	}
	if since := t.config.Clock.Since(p.DeletionTimestamp.Time); since < settles {
		return settles - since, nil
	}
	reason, message, err := t.left(ctx, p.Name)
	if err != nil {
		return 0, err
	}
	if reason != "" {
		return useLooked, t.sayInUse(ctx, p, reason, message)
	}
	client := t.api.Dynamic.Resource(v1alpha1.ProviderResource)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := client.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || live.GetUID() != p.UID {
			return err
		}
		live.SetFinalizers(slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == v1alpha1.ProviderInUseFinalizer }))
		_, err = client.Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return 0, err
}

// left tells what is stored of a Provider's types: objects, or states of objects that somebody took the
// finalizer from.
func (t *term) left(ctx context.Context, name string) (reason, message string, err error) {
	resources, err := t.config.Stored(ctx, schema.Group(name))
	if err != nil {
		return "", "", err
	}
	if len(resources) > 0 {
		slices.Sort(resources)
		return v1alpha1.ReasonObjectsExist, fmt.Sprintf(
			"there are objects of %s in %s: delete them, plan and apply; the Provider goes when the last of them has", some(resources), schema.Group(name)), nil
	}
	options := metav1.ListOptions{Limit: statesPage}
	for {
		page, err := t.api.Metadata.Resource(v1alpha1.ResourceStateResource).List(ctx, options)
		if err != nil {
			return "", "", fmt.Errorf("look for states of Provider %s: %w", name, err)
		}
		for i := range page.Items {
			if of, ok := providerOfState(page.Items[i].Name); ok && of == name {
				return v1alpha1.ReasonStatesExist, fmt.Sprintf(
					"the object of ResourceState %s of namespace %s is gone, and its resource may be there: plan and apply in that namespace to delete it, or delete the ResourceState to forget it",
					page.Items[i].Name, page.Items[i].Namespace), nil
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return "", "", nil
		}
	}
}

// providerOfState reads the name of a state, as v1alpha1.StateName makes it: PLURAL.PROVIDER.NAME, of which only the last
// can have dots.
func providerOfState(name string) (string, bool) {
	_, rest, ok := strings.Cut(name, ".")
	provider, _, named := strings.Cut(rest, ".")
	return provider, ok && named
}

func (t *term) sayInUse(ctx context.Context, p *v1alpha1.Provider, reason, message string) error {
	return writeStatus(ctx, t.api.Dynamic.Resource(v1alpha1.ProviderResource), p, func(status *v1alpha1.ProviderStatus) bool {
		return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ProviderInUse, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(t.config.Clock.Now()),
		})
	})
}
