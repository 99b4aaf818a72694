package workspaces

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/turns"
)

// ownAdmission is the admission by the webhooks and policies of the request's workspace. Upstream's plugins read them by informers, so
// they run only in workspaces that have, or had, such objects.
type ownAdmission struct{ *chain }

var (
	_ admission.MutationInterface   = ownAdmission{}
	_ admission.ValidationInterface = ownAdmission{}
)

func (ownAdmission) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface. The server's own kinds are only validated: what the server has checked and recorded in them, such as
// the exporter of an APIBinding, must not be changed afterwards.
func (o ownAdmission) Admit(ctx context.Context, a admission.Attributes, oi admission.ObjectInterfaces) error {
	if o.announced.Has(a.GetResource().Group) {
		return nil
	}
	plugins, err := o.of(ctx)
	mutation, ok := plugins.(admission.MutationInterface)
	if err != nil || !ok || !plugins.Handles(a.GetOperation()) {
		return err
	}
	if err := mutation.Admit(ctx, a, oi); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return mutation.Admit(ctx, a, oi)
}

// Validate implements admission.ValidationInterface.
func (o ownAdmission) Validate(ctx context.Context, a admission.Attributes, oi admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && a.GetResource().Group == admissionregistrationv1.GroupName && !a.IsDryRun() {
		if err := workspaceOf(ctx).beginAdmission(ctx); err != nil {
			return admissionUnknown(err)
		}
	}
	warnOfServices(ctx, a)
	plugins, err := o.of(ctx)
	if validation, ok := plugins.(admission.ValidationInterface); ok && err == nil && plugins.Handles(a.GetOperation()) {
		return validation.Validate(ctx, a, oi)
	}
	return err
}

// warnOfServices warns about webhooks that are not called.
func warnOfServices(ctx context.Context, a admission.Attributes) {
	warn := func(name string, c admissionregistration.WebhookClientConfig) {
		if c.Service != nil {
			warning.AddWarning(ctx, "", fmt.Sprintf("webhook %s uses service %s/%s: a workspace runs no Services, so the webhook is not called: "+
				"set url, with a URL that Atoll can reach, instead of service", name, c.Service.Namespace, c.Service.Name))
		}
	}
	switch o := a.GetObject().(type) {
	case *admissionregistration.MutatingWebhookConfiguration:
		for _, hook := range o.Webhooks {
			warn(hook.Name, hook.ClientConfig)
		}
	case *admissionregistration.ValidatingWebhookConfiguration:
		for _, hook := range o.Webhooks {
			warn(hook.Name, hook.ClientConfig)
		}
	}
}

// of returns the plugins of the request's workspace, nil if it needs none.
func (o ownAdmission) of(ctx context.Context) (admission.Interface, error) {
	workspace := workspaceOf(ctx)
	if workspace == nil {
		return nil, errNoWorkspace
	}
	has, err := workspace.hasAdmission(ctx)
	if err != nil {
		return nil, admissionUnknown(err)
	}
	if !has {
		return nil, nil
	}
	server, err := workspace.admission(o.chain)
	if err != nil {
		return nil, admissionUnknown(err)
	}
	return server.plugins, nil
}

// admissionUnknown is the error of a request that could circumvent a policy.
func admissionUnknown(err error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the webhooks and policies of the workspace are not known now: retry: %v", err))
}

// admissionKey exists if the workspace has, or had, webhooks or policies.
const admissionKey = "/atoll/policies"

// beginAdmission records that the workspace has webhooks or policies, before the first one is written.
func (w *Workspace) beginAdmission(ctx context.Context) error {
	if w == nil {
		return errNoWorkspace
	}
	if w.admits.Load() {
		return nil
	}
	if _, err := w.client.Put(ctx, admissionKey, ""); err != nil {
		return fmt.Errorf("record the first one: %w", err)
	}
	w.admits.Store(true)
	return nil
}

// hasAdmission reports whether the workspace has, or had, webhooks or policies. Another server may have written the first one.
func (w *Workspace) hasAdmission(ctx context.Context) (bool, error) {
	if w.admits.Load() {
		return true, nil
	}
	found, err := w.client.Kubernetes.Get(ctx, admissionKey, kubernetes.GetOptions{})
	if err == nil && found.KV != nil {
		w.admits.Store(true)
	}
	return w.admits.Load(), err
}

// admissionServer has upstream's plugins for one workspace.
type admissionServer struct {
	plugins admission.Interface
	stop    func()
}

// admission returns the plugins of the workspace, and starts them if they do not run.
func (w *Workspace) admission(c *chain) (*admissionServer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stores == nil {
		return nil, errClosed
	}
	if w.admitting == nil {
		server, err := c.newAdmissionServer(w)
		if err != nil {
			return nil, fmt.Errorf("start the plugins: %w", err)
		}
		w.admitting = server
	}
	return w.admitting, nil
}

// ownPlugins creates upstream's plugins, in its order. They read no files.
var ownPlugins = []func() (admission.Interface, error){
	func() (admission.Interface, error) { return mutatingpolicy.NewPlugin(nil) },
	func() (admission.Interface, error) { return mutatingwebhook.NewMutatingWebhook(nil) },
	func() (admission.Interface, error) { return validatingpolicy.NewPlugin(nil) },
	func() (admission.Interface, error) { return validatingwebhook.NewValidatingAdmissionWebhook(nil) },
}

// policyResync is how often the informers deliver all objects again; upstream's own is the same.
const policyResync = 10 * time.Minute

// newAdmissionServer starts the plugins of a workspace. A request waits until they know all objects.
func (c *chain) newAdmissionServer(w *Workspace) (*admissionServer, error) {
	config := c.clientConfig(w)
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	custom := *config // custom resources have no other encoding
	custom.ContentType = "application/json"
	objects, err := dynamic.NewForConfig(&custom)
	if err != nil {
		return nil, err
	}
	watched := informers.NewSharedInformerFactory(client, policyResync)
	ctx, cancel := context.WithCancel(context.Background())
	initializers := admission.PluginInitializers{
		webhookinitializer.NewPluginInitializer(c.outgoing.resolver, noServices{}),
		initializer.New(client, objects, watched, w.authorizer(c.generic.Authorization.Authorizer), utilfeature.DefaultFeatureGate, c.generic.EffectiveVersion, ctx.Done(),
			restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))),
		apiserver.ReachableHooks(watched),
		excluding{},
	}
	var plugins []admission.Interface
	for _, create := range ownPlugins {
		plugin, err := create()
		if err == nil {
			initializers.Initialize(plugin)
			err = admission.ValidateInitialization(plugin)
		}
		if err != nil {
			cancel()
			return nil, err
		}
		switch plugin.(type) {
		case *mutatingpolicy.Plugin, *validatingpolicy.Plugin:
			plugin = turns.OfPolicies(plugin)
		default:
			plugin = turns.OfWebhooks(plugin)
		}
		plugins = append(plugins, plugin)
	}
	watched.Start(ctx.Done())
	return &admissionServer{plugins: admission.NewChainHandler(plugins...), stop: func() {
		cancel()
		watched.Shutdown()
	}}, nil
}

// excluding tells the plugins about the resources that no policy may intercept, as kube-apiserver does.
type excluding struct{}

func (excluding) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(exclusion.Excluded())
	}
}

// authorizer returns that of the workspace for expressions of policies, which ask without the context of their request.
func (w *Workspace) authorizer(all authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		return all.Authorize(withWorkspace(ctx, w, PathOf(ctx)), a)
	})
}
