package providercontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// configureTimeout bounds one attempt to configure a ProviderConfig.
const configureTimeout = 2 * time.Minute

// reconcileConfig does the elected server's work for a ProviderConfig.
func (t *electedSession) reconcileConfig(ctx context.Context, namespace, name string) (again time.Duration, err error) {
	object, _, _ := t.configs.GetStore().GetByKey(namespace + "/" + name) // a cache returns no errors
	config, ok := object.(*v1alpha1.ProviderConfig)
	switch {
	case !ok:
		return 0, nil
	case config.DeletionTimestamp != nil:
		done, err := t.finalizeConfig(ctx, config)
		if err != nil || done {
			return 0, err
		}
		return usePoll, nil
	}
	if err := t.ensureConfigFinalizer(ctx, config); err != nil {
		return 0, err
	}
	return 0, t.configure(ctx, config)
}

// configure tests a ProviderConfig and writes its condition. After an OpenError it is tested again.
func (t *electedSession) configure(ctx context.Context, config *v1alpha1.ProviderConfig) error {
	namespace, name := config.Namespace, config.Name
	trying, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	accepted, err := t.acceptedMessage(trying, config)
	if err == nil && accepted != "" && hasAccepted(config, accepted) {
		return nil
	}
	var provider providerapi.Provider
	if err == nil {
		provider, _, err = t.OpenLatest(trying, config.Spec.Provider, namespace, name)
	}
	if ctx.Err() != nil {
		return nil
	}
	condition := metav1.Condition{Type: v1alpha1.ProviderConfigured, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConfigured, Message: accepted}
	if u, is := provider.(*sharedProvider); is && u.warned != "" {
		condition.Message = truncate("Warnings: "+u.warned) + "; " + accepted
	}
	if err != nil {
		var openErr *OpenError
		if !errors.As(err, &openErr) {
			openErr = &OpenError{v1alpha1.ReasonConfigUnavailable, err}
		}
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, openErr.Reason, truncate(err.Error())
		err = openErr
	}
	if failed := t.writeCondition(ctx, config, condition); failed != nil {
		return failed
	}
	return err
}

// acceptedMessage returns the message for a configuration that the provider accepts. It names the
// version of the provider and the revision, so that other servers need not test it again.
func (t *electedSession) acceptedMessage(ctx context.Context, config *v1alpha1.ProviderConfig) (string, error) {
	if what := t.pendingReason(config.Spec.Provider); what != "" {
		// Do not wait as Open would: other ProviderConfigs can be tested meanwhile.
		return "", &OpenError{v1alpha1.ReasonNotInstalled, errors.New(what)}
	}
	p, err := t.usable(ctx, config.Spec.Provider)
	if err != nil {
		return "", err
	}
	settings, err := t.readSettings(ctx, config.Spec.Provider, config.Namespace, config.Name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("accepted by %s %s (revision %s)", config.Spec.Provider, p.pack.Version, shortRevision(p.pack.revision()+settings.revision())), nil
}

// shortRevision returns parts of both concatenated revisions.
func shortRevision(both string) string {
	half := len(both) / 2
	return both[:6] + both[half:half+6]
}

func hasAccepted(config *v1alpha1.ProviderConfig, message string) bool {
	is := meta.FindStatusCondition(config.Status.Conditions, v1alpha1.ProviderConfigured)
	return is != nil && is.Status == metav1.ConditionTrue && is.ObservedGeneration == config.Generation && strings.HasSuffix(is.Message, message)
}

// writeCondition writes a condition of the live ProviderConfig, not of the cached one.
func (t *electedSession) writeCondition(ctx context.Context, config *v1alpha1.ProviderConfig, condition metav1.Condition) error {
	client := t.clients.Dynamic.Resource(v1alpha1.ProviderConfigResource).Namespace(config.Namespace)
	condition.ObservedGeneration = config.Generation
	condition.LastTransitionTime = metav1.NewTime(t.config.Clock.Now())
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := client.Get(ctx, config.Name, metav1.GetOptions{})
		if err != nil || live.GetUID() != config.UID {
			return err
		}
		is := &v1alpha1.ProviderConfig{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, is); err != nil {
			return err
		}
		if !meta.SetStatusCondition(&is.Status.Conditions, condition) && is.Status.ObservedGeneration == config.Generation {
			return nil
		}
		is.Status.ObservedGeneration = config.Generation
		if err := putStatus(live, &is.Status); err != nil {
			return err
		}
		_, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of ProviderConfig %s/%s: %w", config.Namespace, config.Name, err)
	}
	return nil
}
