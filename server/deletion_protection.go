package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// protectionUser is the user in the audit log that looks for objects that are protected from deletion.
const protectionUser = "atoll:deletion-protection"

// deletionProtection protects the objects with v1alpha1.DeletionProtectedLabel.
func (s *Server) deletionProtection() *apiserver.DeletionProtection {
	find := sync.OnceValues(func() (*protectedObjects, error) {
		config := s.api.ClientConfig(protectionUser)
		config.QPS, config.Burst = -1, -1
		types, err := discovery.NewDiscoveryClientForConfig(config)
		if err != nil {
			return nil, err
		}
		objects, err := metadata.NewForConfig(config)
		return &protectedObjects{types, objects}, err
	})
	return &apiserver.DeletionProtection{
		Label: v1alpha1.DeletionProtectedLabel,
		InNamespace: func(ctx context.Context, namespace string) (string, error) {
			p, err := find()
			if err != nil {
				return "", err
			}
			return p.in(ctx, namespace)
		},
		OfType: func(ctx context.Context, resource schema.GroupVersionResource) (string, error) {
			p, err := find()
			if err != nil {
				return "", err
			}
			return p.first(ctx, resource, metav1.NamespaceAll)
		},
	}
}

// protectedObjects finds objects that are protected from deletion.
type protectedObjects struct {
	types   discovery.ServerResourcesInterface
	objects metadata.Interface
}

// Many lists of a namespace run at once: each may wait until the cache of its type has caught up, and one after the other
// they exceeded the time limit of the deletion. Together they get less time than that limit, so that the error names the
// type.
const (
	maxLists  = 16
	listsTime = 25 * time.Second
)

// in returns a protected object of a namespace, or "". If it cannot read all types, it returns an error.
func (p *protectedObjects) in(ctx context.Context, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, listsTime)
	defer cancel()
	lists, err := p.types.ServerPreferredResources()
	if err != nil {
		return "", fmt.Errorf("discover the types of its objects: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxLists)
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return "", err
		}
		for _, r := range list.APIResources {
			if !r.Namespaced || !(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}).Match(list.GroupVersion, &r) {
				continue
			}
			group.Go(func() error {
				found, err := p.first(ctx, gv.WithResource(r.Name), namespace)
				if err == nil && found != "" {
					return protectedError(found) // the other lists need not go on
				}
				return err
			})
		}
	}
	err = group.Wait()
	if found := protectedError(""); errors.As(err, &found) {
		return string(found), nil
	}
	return "", err
}

// protectedError is the name of a protected object.
type protectedError string

func (e protectedError) Error() string { return string(e) + " is protected" }

// first returns a protected object of a resource, or "".
func (p *protectedObjects) first(ctx context.Context, resource schema.GroupVersionResource, namespace string) (string, error) {
	options := metav1.ListOptions{LabelSelector: v1alpha1.DeletionProtectedLabel + "=true", Limit: 1}
	for {
		page, err := p.objects.Resource(resource).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("list %s: %w", resource.GroupResource(), err)
		}
		if len(page.Items) > 0 {
			o := &page.Items[0]
			return resource.GroupResource().String() + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"), nil
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return "", nil
		}
	}
}
