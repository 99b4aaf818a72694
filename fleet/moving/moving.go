// Package moving does what a user does to move objects between clusters: it labels objects, requests things of
// transitions, cordons and drains clusters, and follows how far all of that is. Everything is a request to the API;
// the controllers do the work.
package moving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// fieldManager of the requests.
const fieldManager = "atoll"

// pollInterval is how often something that is followed is read.
const pollInterval = 500 * time.Millisecond

// Client makes the requests.
type Client struct {
	Dynamic dynamic.Interface
	// DryRun: the API validates writes, and stores nothing.
	DryRun bool
}

// Object names an object in Atoll.
type Object struct {
	Resource        schema.GroupVersionResource
	Kind            schema.GroupKind
	Namespace, Name string
}

// String returns KIND NAMESPACE/NAME.
func (o Object) String() string { return o.Kind.Kind + " " + o.path() }

func (o Object) path() string { return strings.TrimPrefix(o.Namespace+"/"+o.Name, "/") }

// Argument returns the object as an argument of commands: deployments.apps/web.
func (o Object) Argument() string { return o.Resource.GroupResource().String() + "/" + o.Name }

// InNamespace returns the flag for the object's namespace in commands.
func (o Object) InNamespace() string {
	if o.Namespace == "" {
		return ""
	}
	return " -n " + o.Namespace
}

func (c *Client) dryRun() []string {
	if c.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// Label sets a label of an object, or removes it if the value is empty. With a UID, it fails for another object of the
// same name.
func (c *Client) Label(ctx context.Context, o Object, uid types.UID, label, value string) error {
	var set any // null removes it
	if value != "" {
		set = value
	}
	metadata := map[string]any{"labels": map[string]any{label: set}}
	if uid != "" {
		metadata["uid"] = uid
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(o.Resource).Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager, DryRun: c.dryRun()})
	if err != nil {
		return fmt.Errorf("label %s: %w", o, err)
	}
	return nil
}

// Binding reads the binding of an object.
func (c *Client) Binding(ctx context.Context, o Object) (*v1alpha1.ResourceBinding, error) {
	u, err := c.Dynamic.Resource(v1alpha1.BindingResource(o.Namespace)).Namespace(o.Namespace).Get(ctx, v1alpha1.BindingName(o.Kind, o.Name), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("read the binding of %s: %w", o, err)
	}
	return b, nil
}

// eachBinding calls use with each binding of a namespace, or of all with "", and of cluster-scoped objects with those.
func (c *Client) eachBinding(ctx context.Context, namespace string, use func(*v1alpha1.ResourceBinding)) error {
	resources := []schema.GroupVersionResource{v1alpha1.ResourceBindingResource}
	if namespace == "" {
		resources = append(resources, v1alpha1.ClusterResourceBindingResource)
	}
	for _, resource := range resources {
		options := metav1.ListOptions{Limit: 500}
		for {
			list, err := c.Dynamic.Resource(resource).Namespace(namespace).List(ctx, options)
			if err != nil {
				return fmt.Errorf("list %s: %w", resource.GroupResource(), err)
			}
			for i := range list.Items {
				b := &v1alpha1.ResourceBinding{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, b); err != nil {
					return fmt.Errorf("read the binding %s: %w", list.Items[i].GetName(), err)
				}
				use(b)
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	return nil
}

// poll calls check at intervals until it returns true or an error. A server that restarts comes back, so an error of
// reading does not end it: with ctx's end, the last one is in the error.
func poll(ctx context.Context, check func() (done bool, unread, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		done, unread, err := check()
		if done || err != nil {
			return err
		}
		if unread == nil || ctx.Err() == nil { // the end of ctx is no answer of a server
			last = unread
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-ticker.C:
		}
	}
}
