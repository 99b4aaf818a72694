package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// NamespaceRequest is a request to create an object in a namespace that does not exist.
type NamespaceRequest struct {
	Namespace string
	// APIGroup of the object.
	APIGroup string
	// UserGroups are the groups of the user.
	UserGroups []string
}

// MissingNamespace is the decision about a NamespaceRequest. The zero value is the
// default of any cluster: 404.
type MissingNamespace struct {
	// Provide creates the namespace first, with these labels and annotations.
	Provide             bool
	Labels, Annotations map[string]string
	// Most, unless it is 0, is how many namespaces with all these annotations there may be. Beyond it,
	// the request is forbidden: a member could otherwise fill the control plane with namespaces.
	Most int
	// Remedy is appended to the message of the 404, or of the 403 beyond Most.
	Remedy string
}

// NamespacedWrite is a request to create or change an object in a namespace.
type NamespacedWrite struct {
	Namespace string
	// APIGroup of the object.
	APIGroup string
	// UserName and UserGroups are those of the user.
	UserName   string
	UserGroups []string
}

// provideNamespaces is the name of the admission plugin. It runs before
// NamespaceLifecycle, which would reject the object.
const provideNamespaces = "ProvideNamespace"

// namespaceProvider creates namespaces on first use, for the users and API groups that
// decide chooses, if the user may create the object. It creates them as the server
// itself: users need no permission to create namespaces.
//
// In a dry run nothing is created. A warning announces the namespace, and
// NamespaceLifecycle ignores that it is missing.
type namespaceProvider struct {
	*admission.Handler
	decide     func(NamespaceRequest) MissingNamespace
	onWrite    func(context.Context, NamespacedWrite)
	namespaces corelisters.NamespaceLister
	client     clientset.Interface
	authorizer authorizer.Authorizer
}

var (
	_ admission.MutationInterface                  = (*namespaceProvider)(nil)
	_ admission.ValidationInterface                = (*namespaceProvider)(nil)
	_ initializer.WantsExternalKubeClientSet       = (*namespaceProvider)(nil)
	_ initializer.WantsExternalKubeInformerFactory = (*namespaceProvider)(nil)
	_ initializer.WantsAuthorizer                  = (*namespaceProvider)(nil)
)

// neverProvided returns the namespaces that always exist, or are not for objects of
// members.
func neverProvided() sets.Set[string] {
	return sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, v1alpha1.SystemNamespace)
}

// withNamespaces adds the plugin to those of o, and adapts NamespaceLifecycle to it.
// lost reports whether the datastore is unreachable.
func withNamespaces(o *kubeoptions.AdmissionOptions, cfg Config, lost func() bool) {
	provider := &namespaceProvider{
		Handler: admission.NewHandler(admission.Create, admission.Update),
		decide:  cfg.OnMissingNamespace, onWrite: cfg.OnNamespacedWrite,
	}
	generic := o.GenericAdmission
	if cfg.OnMissingNamespace != nil || cfg.OnNamespacedWrite != nil {
		addFirst(o, provideNamespaces, provider)
	}
	generic.Decorators = append(generic.Decorators, admission.DecoratorFunc(func(h admission.Interface, name string) admission.Interface {
		if mutating, ok := h.(admission.MutationInterface); ok && name == lifecycle.PluginName {
			return &namespaceLifecycle{mutating, provider, lost}
		}
		return h
	}))
}

func (p *namespaceProvider) SetExternalKubeClientSet(client clientset.Interface) { p.client = client }
func (p *namespaceProvider) SetAuthorizer(a authorizer.Authorizer)               { p.authorizer = a }

func (p *namespaceProvider) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	i := f.Core().V1().Namespaces()
	p.namespaces = i.Lister()
	p.SetReadyFunc(i.Informer().HasSynced)
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *namespaceProvider) ValidateInitialization() error {
	if p.client == nil || p.namespaces == nil || p.authorizer == nil {
		return errors.New(provideNamespaces + " lacks a client, an informer or an authorizer")
	}
	return nil
}

// Admit implements admission.MutationInterface.
func (p *namespaceProvider) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	verdict, err := p.missing(ctx, a)
	if err != nil {
		return err
	}
	name := a.GetNamespace()
	switch {
	case verdict.Provide && verdict.Most > 0 && p.provided(verdict.Annotations) >= verdict.Most:
		return apierrors.NewForbidden(corev1.Resource("namespaces"), name, fmt.Errorf("it does not exist, and %d namespaces were created this way before: %s", verdict.Most, verdict.Remedy))
	case !verdict.Provide && verdict.Remedy != "":
		refusal := apierrors.NewNotFound(corev1.Resource("namespaces"), name)
		refusal.ErrStatus.Message += ": " + verdict.Remedy
		return refusal
	case !verdict.Provide:
		return nil
	case a.IsDryRun():
		warning.AddWarning(ctx, "", fmt.Sprintf("namespace %q does not exist; without dry run it is created first", name))
		return nil
	}
	_, err = p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: verdict.Labels, Annotations: verdict.Annotations,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // created concurrently, or terminating: NamespaceLifecycle reports it
	}
	if err != nil {
		return cannotProvide(name, err)
	}
	// The audit event of the namespace's own creation names the server as the user.
	return a.AddAnnotation("provide-namespace.admission.atoll.dev/provided", name)
}

// provided returns how many namespaces have all these annotations.
func (p *namespaceProvider) provided(annotations map[string]string) (n int) {
	all, err := p.namespaces.List(labels.Everything())
	if err != nil {
		return 0 // a lister reads memory, and returns no errors
	}
	for _, ns := range all {
		if containsAll(ns.Annotations, annotations) {
			n++
		}
	}
	return n
}

func containsAll(in, wanted map[string]string) bool {
	for name, value := range wanted {
		if in[name] != value {
			return false
		}
	}
	return true
}

// Validate implements admission.ValidationInterface. It refuses nothing.
func (p *namespaceProvider) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	name, resource := a.GetNamespace(), a.GetResource()
	if p.onWrite == nil || a.IsDryRun() || name == "" || neverProvided().Has(name) || resource.GroupResource() == corev1.Resource("namespaces") {
		return nil
	}
	p.onWrite(ctx, NamespacedWrite{
		Namespace: name, APIGroup: resource.Group,
		UserName: a.GetUserInfo().GetName(), UserGroups: a.GetUserInfo().GetGroups(),
	})
	return nil
}

// missing returns the decision about a request that needs a missing namespace, if the
// user may create the object. Otherwise it returns the zero value.
func (p *namespaceProvider) missing(ctx context.Context, a admission.Attributes) (none MissingNamespace, err error) {
	name, resource := a.GetNamespace(), a.GetResource()
	if a.GetOperation() != admission.Create || name == "" || a.GetSubresource() != "" || neverProvided().Has(name) ||
		resource.GroupResource() == corev1.Resource("namespaces") {
		return none, nil
	}
	if p.decide == nil || p.namespaces == nil || !p.WaitForReady() {
		return none, nil
	}
	if _, err := p.namespaces.Get(name); err == nil {
		return none, nil
	}
	verdict := p.decide(NamespaceRequest{Namespace: name, APIGroup: resource.Group, UserGroups: a.GetUserInfo().GetGroups()})
	if !verdict.Provide && verdict.Remedy == "" {
		return none, nil
	}
	// For an apply request, only the permission to patch has been checked so far.
	allowed, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "create", Namespace: name,
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource, Name: a.GetName(),
		ResourceRequest: true,
	})
	if allowed != authorizer.DecisionAllow {
		return none, err
	}
	if verdict.Provide && !a.IsDryRun() {
		return verdict, nil // creating it shows whether it exists
	}
	_, err = p.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return verdict, nil
	case err != nil:
		return none, cannotProvide(name, err)
	}
	return none, nil
}

// cannotProvide keeps the reason and code of an error: a temporary failure must stay
// one.
func cannotProvide(namespace string, err error) error {
	if apierrors.IsServiceUnavailable(err) {
		return unreachable()
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return fmt.Errorf("provide namespace %q: %w", namespace, err)
	}
	out := *status
	out.ErrStatus.Message = fmt.Sprintf("namespace %q does not exist and cannot be created: %s", namespace, out.ErrStatus.Message)
	return &out
}

// namespaceLifecycle is upstream's plugin with two exceptions. It accepts a dry run for
// which the namespace would have been created. And if it cannot find out whether a
// namespace exists, it does not report an internal error.
type namespaceLifecycle struct {
	admission.MutationInterface
	provider *namespaceProvider
	lost     func() bool
}

func (l *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.IsDryRun() {
		if verdict, err := l.provider.missing(ctx, a); err == nil && verdict.Provide {
			return nil
		}
	}
	err := l.MutationInterface.Admit(ctx, a, o)
	if apierrors.IsInternalError(err) && l.lost() {
		return unreachable()
	}
	return err
}
