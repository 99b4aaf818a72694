package providercontroller

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
	// deletionGrace is how long after a deletion every server is certain to know of it and to
	// reject new objects of the Provider's types.
	deletionGrace = 3 * time.Second
	// usePoll is the interval at which a deleted Provider is checked for remaining use.
	usePoll = 5 * time.Second
	// statesPage is the page size for listing ResourceStates.
	statesPage = 500
)

// reconcileProvider does the elected server's work for a Provider.
func (t *electedSession) reconcileProvider(ctx context.Context, name string) (again time.Duration, err error) {
	p := t.provider(name)
	switch {
	case p == nil:
		return 0, nil
	case p.DeletionTimestamp != nil:
		return t.finalize(ctx, p)
	}
	return 0, t.ensureRoles(ctx, p)
}

// finalize removes the finalizer of a deleted Provider that is no longer used. Otherwise it reports
// the use and returns when to check again.
func (t *electedSession) finalize(ctx context.Context, p *v1alpha1.Provider) (again time.Duration, err error) {
	if !slices.Contains(p.Finalizers, v1alpha1.ProviderInUseFinalizer) || t.config.StoredResources == nil {
		return 0, nil
	}
	if since := t.config.Clock.Since(p.DeletionTimestamp.Time); since < deletionGrace {
		return deletionGrace - since, nil
	}
	reason, message, err := t.remainingUse(ctx, p.Name)
	if err != nil {
		return 0, err
	}
	if reason != "" {
		return usePoll, t.writeInUse(ctx, p, reason, message)
	}
	client := t.clients.Dynamic.Resource(v1alpha1.ProviderResource)
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

// remainingUse returns the stored data of a Provider's types: objects, or states of objects whose
// finalizer was removed by hand.
func (t *electedSession) remainingUse(ctx context.Context, name string) (reason, message string, err error) {
	resources, err := t.config.StoredResources(ctx, schema.Group(name))
	if err != nil {
		return "", "", err
	}
	if len(resources) > 0 {
		slices.Sort(resources)
		return v1alpha1.ReasonObjectsExist, fmt.Sprintf(
			"objects of %s exist in %s: delete them, plan and apply; the Provider is removed after the last one", summarize(resources), schema.Group(name)), nil
	}
	options := metav1.ListOptions{Limit: statesPage}
	for {
		page, err := t.clients.Metadata.Resource(v1alpha1.ResourceStateResource).List(ctx, options)
		if err != nil {
			return "", "", fmt.Errorf("list the states of Provider %s: %w", name, err)
		}
		for i := range page.Items {
			if of, ok := providerOfState(page.Items[i].Name); ok && of == name {
				return v1alpha1.ReasonStatesExist, fmt.Sprintf(
					"ResourceState %s in namespace %s has no object, but its resource may exist: plan and apply in that namespace to destroy it, or delete the ResourceState to forget it",
					page.Items[i].Name, page.Items[i].Namespace), nil
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return "", "", nil
		}
	}
}

// providerOfState parses the name of a state, as v1alpha1.StateName builds it:
// PLURAL.PROVIDER.NAME. Only NAME can have dots.
func providerOfState(name string) (string, bool) {
	_, rest, ok := strings.Cut(name, ".")
	provider, _, named := strings.Cut(rest, ".")
	return provider, ok && named
}

func (t *electedSession) writeInUse(ctx context.Context, p *v1alpha1.Provider, reason, message string) error {
	return writeStatus(ctx, t.clients.Dynamic.Resource(v1alpha1.ProviderResource), p, func(status *v1alpha1.ProviderStatus) bool {
		return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ProviderInUse, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(t.config.Clock.Now()),
		})
	})
}
