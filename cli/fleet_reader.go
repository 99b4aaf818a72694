package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/webhooks"
)

// fleetReader reads objects for the commands that explain placement.
type fleetReader struct {
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
	// workspace is the path of the workspace that it reads; "" is the root.
	workspace string
}

func newFleetReader(atoll *target) (*fleetReader, error) {
	config, err := atoll.config()
	if err != nil {
		return nil, err
	}
	if err := checkOwnPlacement(config); err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, -1 // a snapshot is many lists, and Atoll has its own flow control
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	cached := memory.NewMemCacheClient(client)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, func(string) {})
	_, workspace := splitWorkspaceURL(config.Host)
	return &fleetReader{dynamic: dyn, mapper: mapper, workspace: workspace}, nil
}

// snapshot loads the inputs of placement decisions: the objects in Atoll, and the
// fields that its clusters' APIs support, which it reads from the clusters. It writes
// warnings about missing data to warn.
func (f *fleetReader) snapshot(ctx context.Context, warn io.Writer) (*scheduler.State, error) {
	s, err := scheduler.LoadWith(ctx, f.dynamic, time.Now(), scheduler.LoadOptions{
		Answers: webhooks.NewDirect(ctx, askWithWarning(warn)), InWorkspace: f.workspace != ""})
	if err != nil {
		return nil, err
	}
	fields := imports.NewFields()
	unread := fields.ReadMembers(ctx, s.Clusters, func(ctx context.Context, name string) (*rest.Config, error) {
		access, err := fleet.ReadAccess(ctx, f.dynamic, name)
		if err != nil {
			return nil, err
		}
		return access.REST, nil
	})
	s.Fields = fields
	if failed := slices.Sorted(maps.Keys(unread)); len(failed) > 0 {
		fmt.Fprintf(warn, "warning: cannot read the supported API fields of %d clusters (%s); missing fields are not considered: %v\n",
			len(failed), names.List(failed), unread[failed[0]])
	}
	if err := fields.ReadReports(ctx, s.Clusters, f.dynamic); err != nil {
		fmt.Fprintf(warn, "warning: the supported API fields of clusters in mode Pull are unknown; missing fields are not considered: %v\n", err)
	}
	return s, nil
}

// askWithWarning asks webhooks of ResourceInterpretations, and warns once for each that does not answer.
func askWithWarning(warn io.Writer) webhooks.Ask {
	caller, warned := webhooks.NewCaller(nil), map[string]bool{}
	return func(ctx context.Context, q interpret.Question) (interpret.Answer, error) {
		a, err := caller.Ask(ctx, q)
		if err != nil && !warned[q.Interpretation] {
			warned[q.Interpretation] = true
			fmt.Fprintf(warn, "warning: the webhook of ResourceInterpretation %s at %s has not answered this command about %s %s; objects without an answer stay where they are: %v\n",
				q.Interpretation, interpret.WebhookHost(q.Webhook), q.Kind.Kind, q.Name, err)
		}
		return a, err
	}
}

// resolve parses KIND/NAME, where the kind may have any form that kubectl accepts:
// deploy, deployment, Deployment, deployments.apps.
func (f *fleetReader) resolve(what string) (gvr schema.GroupVersionResource, gvk schema.GroupVersionKind, namespaced bool, name string, err error) {
	kind, name, ok := strings.Cut(what, "/")
	if !ok || kind == "" || name == "" {
		return gvr, gvk, false, "", fmt.Errorf("%q is not KIND/NAME: use a form such as deployment/web", what)
	}
	resource := schema.ParseGroupResource(strings.ToLower(kind))
	if gvr, err = f.mapper.ResourceFor(resource.WithVersion("")); err != nil {
		return gvr, gvk, false, "", fmt.Errorf("Atoll does not serve kind %q: run `kubectl api-resources` to list the kinds: %w", kind, err)
	}
	if gvk, err = f.mapper.KindFor(gvr); err != nil {
		return gvr, gvk, false, "", err
	}
	mapping, err := f.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return gvr, gvk, false, "", err
	}
	return gvr, gvk, mapping.Scope.Name() == meta.RESTScopeNameNamespace, name, nil
}

// readObjects reads manifests from a file, or from in if its name is "-".
func readObjects(file string, in io.Reader) ([]*unstructured.Unstructured, error) {
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, fileFlagError(err)
		}
		defer opened.Close()
		in = opened
	}
	var out []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", file, err)
		case len(u.Object) == 0:
			continue
		case u.GetKind() == "" || u.GetAPIVersion() == "":
			return nil, fmt.Errorf("read %s: an object has no kind or apiVersion", file)
		}
		if !u.IsList() {
			out = append(out, u)
			continue
		}
		err = u.EachListItem(func(item runtime.Object) error {
			if each, ok := item.(*unstructured.Unstructured); ok {
				out = append(out, each)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
}
