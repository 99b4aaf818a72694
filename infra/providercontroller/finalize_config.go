package providercontroller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// ensureConfigFinalizer keeps a ProviderConfig from being removed while resources that were created with
// it exist.
func (t *electedSession) ensureConfigFinalizer(ctx context.Context, config *v1alpha1.ProviderConfig) error {
	if slices.Contains(config.Finalizers, v1alpha1.ProviderConfigFinalizer) {
		return nil
	}
	return t.changeConfig(ctx, config, func(live *unstructured.Unstructured) bool {
		if live.GetDeletionTimestamp() != nil || slices.Contains(live.GetFinalizers(), v1alpha1.ProviderConfigFinalizer) {
			return false
		}
		live.SetFinalizers(append(live.GetFinalizers(), v1alpha1.ProviderConfigFinalizer))
		return true
	})
}

// finalizeConfig removes the finalizer of a deleted ProviderConfig with which no resource was created.
// Otherwise it reports the use, and returns false.
func (t *electedSession) finalizeConfig(ctx context.Context, config *v1alpha1.ProviderConfig) (done bool, err error) {
	if !slices.Contains(config.Finalizers, v1alpha1.ProviderConfigFinalizer) {
		return true, nil
	}
	user, err := t.userOf(ctx, config)
	if err != nil {
		return false, err
	}
	if user != "" {
		return false, t.writeCondition(ctx, config, metav1.Condition{
			Type: v1alpha1.ProviderConfigInUse, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonStatesExist,
			Message: fmt.Sprintf("resources were created with this configuration (%s): delete their objects, plan and apply; the ProviderConfig is removed after the last one", user)})
	}
	return true, t.changeConfig(ctx, config, func(live *unstructured.Unstructured) bool {
		kept := slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == v1alpha1.ProviderConfigFinalizer })
		live.SetFinalizers(kept)
		return true
	})
}

// userOf returns a resource that was created with a ProviderConfig, or "".
func (t *electedSession) userOf(ctx context.Context, config *v1alpha1.ProviderConfig) (string, error) {
	options := metav1.ListOptions{Limit: statesPage}
	for {
		page, err := t.clients.Dynamic.Resource(v1alpha1.ResourceStateResource).Namespace(config.Namespace).List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("list the states of namespace %s: %w", config.Namespace, err)
		}
		for i := range page.Items {
			state := &v1alpha1.ResourceState{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, state); err != nil {
				return "", fmt.Errorf("read the state %s/%s: %w", config.Namespace, page.Items[i].GetName(), err)
			}
			if s := state.Spec; s.HasResource() && s.Provider == config.Spec.Provider && (s.ProviderConfig == config.Name || s.ProviderConfig == "" && config.Name == s.Provider) {
				return strings.ToLower(s.Object.Kind) + "/" + s.Object.Name, nil
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return "", nil
		}
	}
}

// changeConfig changes the live ProviderConfig, unless change returns false.
func (t *electedSession) changeConfig(ctx context.Context, config *v1alpha1.ProviderConfig, change func(live *unstructured.Unstructured) bool) error {
	client := t.clients.Dynamic.Resource(v1alpha1.ProviderConfigResource).Namespace(config.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := client.Get(ctx, config.Name, metav1.GetOptions{})
		if err != nil || live.GetUID() != config.UID || !change(live) {
			return err
		}
		_, err = client.Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change the finalizers of ProviderConfig %s/%s: %w", config.Namespace, config.Name, err)
	}
	return nil
}
