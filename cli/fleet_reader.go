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
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// fleetReader finds objects for the commands that say why they are where they are.
type fleetReader struct {
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
}

func newFleetReader(atoll *target) (*fleetReader, error) {
	config, err := atoll.config()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, -1 // a snapshot is many lists, and Atoll has its own fairness
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	cached := memory.NewMemCacheClient(client)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, func(string) {})
	return &fleetReader{dynamic: dyn, mapper: mapper}, nil
}

// snapshot loads what decisions depend on: what Atoll holds, and what its clusters know
// of fields, which is asked of them. What nobody answers for is said on warn.
func (f *fleetReader) snapshot(ctx context.Context, warn io.Writer) (*scheduler.State, error) {
	s, err := scheduler.Load(ctx, f.dynamic, time.Now())
	if err != nil {
		return nil, err
	}
	fields := imports.NewFields()
	unread := fields.ReadMembers(ctx, s.Clusters, func(ctx context.Context, name string) (*rest.Config, error) {
		access, err := fleet.Reach(ctx, f.dynamic, name)
		if err != nil {
			return nil, err
		}
		return access.REST, nil
	})
	s.Fields = fields
	if names := slices.Sorted(maps.Keys(unread)); len(names) > 0 {
		fmt.Fprintf(warn, "warning: %d clusters (%s) could not be asked which fields they know, so a field that they lack is no obstacle here: %v\n",
			len(names), few(names), unread[names[0]])
	}
	if err := fields.ReadReports(ctx, s.Clusters, f.dynamic); err != nil {
		fmt.Fprintf(warn, "warning: which fields clusters in mode Pull know is not known here, so one that they lack is no obstacle: %v\n", err)
	}
	return s, nil
}

// resolve reads KIND/NAME, where the kind may be what kubectl takes: deploy,
// deployment, Deployment, deployments.apps.
func (f *fleetReader) resolve(what string) (gvr schema.GroupVersionResource, gvk schema.GroupVersionKind, namespaced bool, name string, err error) {
	kind, name, ok := strings.Cut(what, "/")
	if !ok || kind == "" || name == "" {
		return gvr, gvk, false, "", fmt.Errorf("%q is not KIND/NAME: write deployment/web", what)
	}
	resource := schema.ParseGroupResource(strings.ToLower(kind))
	if gvr, err = f.mapper.ResourceFor(resource.WithVersion("")); err != nil {
		return gvr, gvk, false, "", fmt.Errorf("Atoll serves no kind %s (see `kubectl api-resources`): %w", kind, err)
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
			return nil, unreadable(err)
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
			return nil, fmt.Errorf("read %s: something in it has no kind or apiVersion", file)
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
