package workspaces

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/apiserver"
)

const (
	// observeInterval is how often the controllers of a workspace are observed.
	observeInterval = time.Second
	// kindsInterval is how often they look for new kinds.
	kindsInterval = 5 * time.Second
)

// Progress is what the controllers of a workspace have left.
type Progress struct {
	// Synced is set once they have read all objects.
	Synced bool
	// Left is how many things are left to finish. First is one of them, or a resource that is not read yet.
	Left  int
	First string
	// Objects is how many objects there are.
	Objects int
}

// RunControllers runs the controllers of the workspace with that path, which are not running yet, and calls observed about once a
// second. Progress comes from their caches, which may be late; current reads all objects again. It stops the controllers when
// observed returns false or when ctx ends, and returns when they have stopped.
func (s *Server) RunControllers(ctx context.Context, path string, w *Workspace, observed func(p Progress, current func() (Progress, error)) (more bool)) error {
	chain, err := s.built()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	client := chain.clientConfig(w)
	client.Transport = loopback{chain: chain, workspace: w, path: path, controllers: true}
	kinds, err := chain.kindsForDiscovery(context.WithValue(ctx, serversKey{}, true), w)
	if err != nil {
		stop()
		return fmt.Errorf("run the controllers of a workspace: %w", err)
	}
	controllers, err := apiserver.NewDemandControllers(ctx, apiserver.DemandConfig{Client: client, RootCA: s.config.RootCA,
		Turn: w.turns.Wait,
		Used: func(all discovery.DiscoveryInterface) discovery.DiscoveryInterface {
			if kinds != nil {
				all = kinds.Used(all)
			}
			return usedKinds{all, w}
		}})
	if err != nil {
		stop()
		return fmt.Errorf("run the controllers of a workspace: %w", err)
	}
	var running sync.WaitGroup
	running.Go(func() { controllers.Run(ctx) })
	defer running.Wait()
	defer stop()
	observer := &observer{controllers: controllers, rootCA: s.config.RootCA}
	ticker := time.NewTicker(observeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !observed(observer.observe(ctx), func() (Progress, error) { return observer.read(ctx) }) {
			return nil
		}
	}
}

// usedKinds is discovery that omits CustomResourceDefinitions while a workspace has none: to list them would start the server of
// custom resources.
type usedKinds struct {
	discovery.DiscoveryInterface
	workspace *Workspace
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (u usedKinds) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	lists, err := u.DiscoveryInterface.ServerPreferredResources()
	if err != nil {
		return lists, err // it is incomplete, and the caller has to know that
	}
	ctx, cancel := context.WithTimeout(context.Background(), customSyncTimeout)
	defer cancel()
	has, err := u.workspace.hasDefinitions(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(lists, func(list *metav1.APIResourceList) bool {
		return !has && list.GroupVersion == apiextensionsv1.SchemeGroupVersion.String()
	}), nil
}

// observer observes the controllers of one workspace.
type observer struct {
	controllers *apiserver.DemandControllers
	rootCA      []byte
	kinds       []apiserver.ServedKind
	discovered  time.Time
}

// observe reads the controllers' caches.
func (o *observer) observe(ctx context.Context) Progress {
	if time.Since(o.discovered) > kindsInterval {
		kinds, err := o.controllers.Kinds()
		if err != nil {
			return Progress{First: err.Error()}
		}
		o.kinds, o.discovered = kinds, time.Now()
	}
	rootCAs, synced := o.controllers.RootCAs()
	if !synced && len(o.rootCA) > 0 {
		return Progress{First: "configmaps"}
	}
	seen := contents{rootCA: o.rootCA, rootCAs: rootCAs, objects: map[apiserver.ServedKind][]runtime.Object{}}
	missing := ""
	for _, kind := range o.kinds {
		objects, synced := o.controllers.Objects(ctx, kind)
		if !synced {
			missing = kind.Resource.GroupResource().String()
		}
		seen.objects[kind] = objects
	}
	if missing != "" {
		return Progress{First: missing}
	}
	return seen.progress()
}

// read reads all objects from the API.
func (o *observer) read(ctx context.Context) (none Progress, err error) {
	seen := contents{rootCA: o.rootCA, objects: map[apiserver.ServedKind][]runtime.Object{}}
	kinds, err := o.controllers.Kinds()
	if err != nil {
		return none, err
	}
	if seen.rootCAs, err = o.controllers.ReadRootCAs(ctx); err != nil {
		return none, err
	}
	for _, kind := range kinds {
		if seen.objects[kind], err = o.controllers.Read(ctx, kind); err != nil {
			return none, fmt.Errorf("read the %s: %w", kind.Resource.GroupResource(), err)
		}
	}
	return seen.progress(), nil
}
