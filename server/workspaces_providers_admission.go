package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/infra/providercontroller"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// workspaceProviderFlag is in errors about the sources of providers.
	workspaceProviderFlag = "--workspace-provider"
	// maxProviders is how many Providers a workspace may have, and maxProviderConfigs how many ProviderConfigs: each may be a process.
	maxProviders, maxProviderConfigs = 20, 50
)

// requestClient returns a client of the workspace that a request is to, as the server itself.
func (t *tenants) requestClient(ctx context.Context) (dynamic.Interface, error) {
	open := workspaces.Of(ctx)
	if open == nil {
		return nil, errors.New("the request is to no workspace")
	}
	config, err := t.served.ClientConfig(open)
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}

// infraSubresources are those of the root, for workspaces.
func (t *tenants) infraSubresources() []apiserver.Subresource {
	all := []apiserver.Subresource{planChanges(t.requestClient), providerTypes(t.registryOf)}
	for i := range all {
		serve := all[i].Serve
		all[i].Serve = func(w http.ResponseWriter, r *http.Request, namespace, name string, user apiserver.User) {
			has, err := t.hasFleet(r.Context(), workspaces.Of(r.Context()))
			switch {
			case err != nil:
				t.s.cfg.Log.Error("read the groups of a workspace failed", "workspace", workspaces.PathOf(r.Context()), "error", err)
				http.Error(w, "the definitions of the workspace cannot be read now: retry", http.StatusServiceUnavailable)
			case !has[v1alpha1.Group]:
				http.NotFound(w, r)
			default:
				serve(w, r, namespace, name, user)
			}
		}
	}
	return all
}

// registryOf returns the registry of providers of the workspace that a request is to, nil if it has no Providers.
func (t *tenants) registryOf(ctx context.Context) (*providercontroller.Registry, error) {
	served, err := workspaces.Of(ctx).Kinds(ctx)
	if err != nil {
		t.s.cfg.Log.Error("open the providers of a workspace failed", "workspace", workspaces.PathOf(ctx), "error", err)
		return nil, errors.New("the providers of the workspace cannot be opened now: retry")
	}
	open, ok := served.(*openProviders)
	if !ok {
		return nil, nil
	}
	return open.registry, nil
}

// keepNamespace returns why a namespace of a workspace must not be deleted, "" if it may be.
func (t *tenants) keepNamespace(ctx context.Context, namespace string) (string, error) {
	n, err := t.countServed(ctx, workspaces.Of(ctx), v1alpha1.ResourceStateResource.GroupResource())
	if err != nil || n == 0 {
		return "", err
	}
	return namespacesWithResources(t.requestClient)(ctx, namespace)
}

// nestedInfraAdmission is the admission of infrastructure in workspaces. Kinds that a workspace defines itself in the group are not checked.
func (t *tenants) nestedInfraAdmission() []apiserver.AdmissionStep {
	steps := infraAdmission(t.requestClient)
	for i := range steps {
		if steps[i].Resource == v1alpha1.PlanResource.GroupResource() {
			steps[i].Check = t.checkPlanned
		}
	}
	return t.ifServed(v1alpha1.Group, append(steps,
		apiserver.AdmissionStep{Resource: v1alpha1.ProviderResource.GroupResource(), Check: t.checkProvider},
		apiserver.AdmissionStep{Resource: v1alpha1.ProviderConfigResource.GroupResource(), Check: t.checkProviderConfig}))
}

// ifServed returns steps that check only objects in workspaces that have a group from the server.
func (t *tenants) ifServed(group string, steps []apiserver.AdmissionStep) []apiserver.AdmissionStep {
	guard := func(check func(context.Context, *apiserver.AdmissionRequest) error) func(context.Context, *apiserver.AdmissionRequest) error {
		if check == nil {
			return nil
		}
		return func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			has, err := t.hasFleet(ctx, workspaces.Of(ctx))
			if err != nil {
				t.s.cfg.Log.Error("read the groups of a workspace failed", "workspace", workspaces.PathOf(ctx), "error", err)
				return apierrors.NewServiceUnavailable("the definitions of the workspace cannot be read now: retry")
			}
			if !has[group] {
				return nil
			}
			return check(ctx, r)
		}
	}
	for i := range steps {
		steps[i].Check, steps[i].CheckDelete = guard(steps[i].Check), guard(steps[i].CheckDelete)
	}
	return steps
}

// checkProvider refuses a Provider that a workspace cannot have. Before one is stored, it marks the workspace, so that a server runs its plans.
// Each server checks the spec again before it installs the package: an object can also come from a backup or a type of workspaces.
func (t *tenants) checkProvider(ctx context.Context, r *apiserver.AdmissionRequest) error {
	resource := v1alpha1.ProviderResource.GroupResource()
	if r.Old != nil && reflect.DeepEqual(r.Old.Object["spec"], r.Object.Object["spec"]) {
		return nil // the administrator may have withdrawn the permission, and finalizers must be removable
	}
	provider := &v1alpha1.Provider{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, provider); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if problems := t.infra.permitted.Check(&provider.Spec, workspaceProviderFlag); len(problems) > 0 {
		return apierrors.NewForbidden(resource, r.Name, problems.ToAggregate())
	}
	if r.Old != nil {
		return nil
	}
	path := workspaces.PathOf(ctx)
	if path == "" {
		return apierrors.NewForbidden(resource, r.Name, refusal("the server itself creates no Providers"))
	}
	if err := t.checkCount(ctx, resource, r.Name, maxProviders, "Providers"); err != nil {
		return err
	}
	if marks := t.directory.FleetMarks(); marks[path] == "" && len(marks) >= t.fleets.max {
		return apierrors.NewForbidden(resource, r.Name, refusal(fmt.Sprintf("%d workspaces have Clusters or Providers, which is as many as the server runs: delete those of another workspace first", len(marks))))
	}
	if err := t.directory.MarkFleet(ctx, path); err != nil {
		t.s.cfg.Log.Error("record that a workspace has Providers failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable("it cannot be recorded now that the workspace has Providers: retry")
	}
	return nil
}

// checkPlanned refuses a Plan in a workspace without Providers: no server would compute it.
func (t *tenants) checkPlanned(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if r.Old != nil {
		return nil
	}
	n, err := t.providersOf(ctx, workspaces.Of(ctx))
	if err != nil {
		t.s.cfg.Log.Error("count the Providers of a workspace failed", "workspace", workspaces.PathOf(ctx), "error", err)
		return apierrors.NewServiceUnavailable("the Providers of the workspace cannot be counted now: retry")
	}
	if n == 0 {
		return apierrors.NewForbidden(v1alpha1.PlanResource.GroupResource(), r.Name, refusal("the workspace has no Providers, so there is nothing to plan: create a Provider first"))
	}
	return nil
}

// checkProviderConfig bounds the ProviderConfigs of a workspace.
func (t *tenants) checkProviderConfig(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if r.Old != nil {
		return nil
	}
	return t.checkCount(ctx, v1alpha1.ProviderConfigResource.GroupResource(), r.Name, maxProviderConfigs, "ProviderConfigs")
}

// checkCount refuses an object beyond the number that a workspace may have.
func (t *tenants) checkCount(ctx context.Context, resource schema.GroupResource, name string, most int64, what string) error {
	n, err := workspaces.Of(ctx).Count(ctx, resource)
	if err != nil {
		t.s.cfg.Log.Error("count objects of a workspace failed", "workspace", workspaces.PathOf(ctx), "resource", resource, "error", err)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the %s of the workspace cannot be counted now: retry", what))
	}
	if n >= most {
		return apierrors.NewForbidden(resource, name, refusal(fmt.Sprintf("a workspace has at most %d %s: delete one, or create another workspace", most, what)))
	}
	return nil
}

// checkResourcesBelow refuses the deletion of a Workspace while it, or one in it, has states of resources: they would go on to exist, and nothing
// in Atoll would know them any more.
func (t *tenants) checkResourcesBelow(ctx context.Context, r *apiserver.AdmissionRequest) error {
	path := below(workspaces.PathOf(ctx), r.Name)
	with, names, err := t.firstWithResources(ctx, path)
	if err != nil {
		t.s.cfg.Log.Error("look for resources of a workspace failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("it cannot be read now whether workspace %s has resources: retry", path))
	}
	if len(names) == 0 {
		return nil
	}
	return forbidden(r, refusal(fmt.Sprintf("workspace %s has resources that would go on to exist without a record (%s): run `atoll destroy -w %s -n NAMESPACE` to destroy them. "+
		"To keep them instead, annotate their objects with infra.atoll.dev/deletion-policy=Forget, delete these, and apply a plan. Then delete the workspace", with, strings.Join(names, ", "), with)))
}

// firstWithResources returns the path of a workspace with recorded resources, and the first of these: of this one, or of one in it. All that have
// some have Providers, and so are marked.
func (t *tenants) firstWithResources(ctx context.Context, path string) (with string, names []string, err error) {
	marks, err := t.directory.ReadFleetMarks(ctx, path)
	if err != nil {
		return "", nil, err
	}
	for _, marked := range marks {
		names, err := t.recordedIn(ctx, marked)
		if err != nil {
			return "", nil, fmt.Errorf("workspace %s: %w", marked, err)
		}
		if len(names) > 0 {
			return marked, names, nil
		}
	}
	return "", nil, nil
}

// recordedIn returns the first resources that a workspace records; none if it does not exist.
func (t *tenants) recordedIn(ctx context.Context, path string) ([]string, error) {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) || errors.Is(err, workspaces.ErrIncomplete) {
		return nil, nil // it is leaving already, or was never served
	}
	if err != nil {
		return nil, err
	}
	defer release()
	n, err := t.countServed(in, open.Workspace, v1alpha1.ResourceStateResource.GroupResource())
	if err != nil || n == 0 {
		return nil, err
	}
	config, err := t.served.ClientConfig(open.Workspace)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return recordedResources(in, client, "")
}

// errProvidersCopied is the reason why a workspace with Providers is no source of a copy.
const errProvidersCopied = refusal("the source has Providers, and a copy would change the same resources: create a workspace without a source, and apply the objects there; or move the source")

// checkProvidersOfSource refuses a copy of an open workspace that has Providers.
func (t *tenants) checkProvidersOfSource(ctx context.Context, source *workspaces.Workspace) error {
	n, err := t.providersOf(ctx, source)
	if err == nil && n > 0 {
		err = errProvidersCopied
	}
	return err
}

// checkCopiedProviders is checkProvidersOfSource for a copy: a Provider may have been created after the check of its source.
// Errors: *tenancy.Unready.
func checkCopiedProviders(ctx context.Context, copied kv.Keyspace) error {
	prefix := []byte("/registry/" + v1alpha1.ProviderResource.Group + "/" + v1alpha1.ProviderResource.Resource + "/")
	found, err := copied.Range(ctx, kv.RangeRequest{Span: kv.Prefix(prefix), CountOnly: true})
	if err != nil {
		return fmt.Errorf("count the Providers of a copy: %w", err)
	}
	if found.Count == 0 {
		return nil
	}
	return &tenancy.Unready{Reason: "SourceHasProviders", Message: string(errProvidersCopied) + ". Delete this one"}
}
