package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// ownTypes is the check of the control plane's own types behind /readyz. Their CRDs are created by
// parts of this process that are clients of the API, and discovery announces a type some time after
// that, in each server by itself. A load balancer that sent requests to a server before would make
// kubectl answer that there is no such type.
type ownTypes struct {
	types   []schema.GroupVersionResource
	missing atomic.Pointer[error] // nil once discovery has listed all
}

const ownTypesCheckName = "own-types"

func newOwnTypes(types []schema.GroupVersionResource) *ownTypes {
	o := &ownTypes{types: types}
	if len(types) > 0 {
		o.store(missingTypes(types, nil))
	}
	return o
}

func (o *ownTypes) check() healthz.HealthChecker {
	return healthz.NamedCheck(ownTypesCheckName, func(*http.Request) error { return o.err() })
}

func (o *ownTypes) err() error {
	if err := o.missing.Load(); err != nil {
		return *err
	}
	return nil
}

func (o *ownTypes) store(err error) {
	if err == nil {
		o.missing.Store(nil)
		return
	}
	o.missing.Store(&err)
}

// await reads discovery until it lists all types or ctx ends. A type that is missing later does not
// make the server unready: a user has deleted it.
func (o *ownTypes) await(ctx context.Context, loopback *rest.Config, log *slog.Logger) {
	if o.err() == nil {
		return
	}
	const interval, long = 50 * time.Millisecond, 20 * time.Second
	client, err := discovery.NewDiscoveryClientForConfig(loopback)
	if err != nil {
		o.store(fmt.Errorf("create a client for discovery: %w", err))
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	slow := time.NewTimer(long)
	defer slow.Stop()
	for {
		_, listed, _, err := client.GroupsAndMaybeResources()
		if err == nil {
			found := map[schema.GroupVersionResource]bool{}
			for gv, list := range listed {
				for _, r := range list.APIResources {
					found[gv.WithResource(r.Name)] = true
				}
			}
			err = missingTypes(o.types, found)
		}
		if o.store(err); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-slow.C:
			log.Warn("this server is not ready, because it does not serve all of Atoll's own types", "after", long, "error", err)
		}
	}
}

// missingTypes returns an error that names the types that were not found, or nil.
func missingTypes(types []schema.GroupVersionResource, found map[schema.GroupVersionResource]bool) error {
	var first schema.GroupVersionResource
	n := 0
	for _, t := range types {
		if found[t] {
			continue
		}
		if n == 0 {
			first = t
		}
		n++
	}
	if n == 0 {
		return nil
	}
	more := ""
	if n > 1 {
		more = fmt.Sprintf(" and %d others", n-1)
	}
	return fmt.Errorf("%s%s not served yet: if this lasts, the log has the reason why the CustomResourceDefinition could not be written", first.GroupResource(), more)
}
