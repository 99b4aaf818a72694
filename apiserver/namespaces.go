package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// NamespaceRequest is a request to create an object in a namespace that does not
// exist.
type NamespaceRequest struct {
	Namespace string
	// APIGroup of the object.
	APIGroup string
	// UserGroups are the groups that the user is in.
	UserGroups []string
}

// MissingNamespace says what happens to a NamespaceRequest. The zero value is what
// happens in any cluster: 404.
type MissingNamespace struct {
	// Provide the namespace first, with these labels and annotations.
	Provide             bool
	Labels, Annotations map[string]string
	// Remedy is added to the 404 of a namespace that is not provided.
	Remedy string
}

// provideNamespaces is the name of the admission plugin. It runs before
// NamespaceLifecycle, which would refuse the object.
const provideNamespaces = "ProvideNamespace"

// namespaceProvider provides namespaces on first use, to users and for API groups
// that decide chooses, if the user may create the object. It does so as the server
// itself: users need no right to create namespaces.
//
// In a dry run nothing is made. A warning says what would be, and the missing
// namespace is overlooked.
type namespaceProvider struct {
	*admission.Handler
	decide     func(NamespaceRequest) MissingNamespace
	namespaces corelisters.NamespaceLister
	client     clientset.Interface
	authorizer authorizer.Authorizer
}

var (
	_ admission.MutationInterface                  = (*namespaceProvider)(nil)
	_ initializer.WantsExternalKubeClientSet       = (*namespaceProvider)(nil)
	_ initializer.WantsExternalKubeInformerFactory = (*namespaceProvider)(nil)
	_ initializer.WantsAuthorizer                  = (*namespaceProvider)(nil)
)

// neverProvided are there by themselves, or are not for objects of members.
func neverProvided() sets.Set[string] {
	return sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, v1alpha1.SystemNamespace)
}

// withNamespaces adds the plugin to those of o, and sees to it that what
// NamespaceLifecycle says fits. lost tells whether the datastore is out of reach.
func withNamespaces(o *kubeoptions.AdmissionOptions, cfg Config, lost func() bool) {
	provider := &namespaceProvider{Handler: admission.NewHandler(admission.Create), decide: cfg.OnMissingNamespace}
	generic := o.GenericAdmission
	if cfg.OnMissingNamespace != nil {
		generic.Plugins.Register(provideNamespaces, func(io.Reader) (admission.Interface, error) { return provider, nil })
		order := slices.Clone(generic.RecommendedPluginOrder)
		generic.RecommendedPluginOrder = slices.Insert(order, slices.Index(order, lifecycle.PluginName), provideNamespaces)
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
	case !verdict.Provide && verdict.Remedy != "":
		refusal := apierrors.NewNotFound(corev1.Resource("namespaces"), name)
		refusal.ErrStatus.Message += ": " + verdict.Remedy
		return refusal
	case !verdict.Provide:
		return nil
	case a.IsDryRun():
		warning.AddWarning(ctx, "", fmt.Sprintf("namespace %q does not exist; without dry run it is made first", name))
		return nil
	}
	_, err = p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: verdict.Labels, Annotations: verdict.Annotations,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // somebody else was quicker, or it is terminating: NamespaceLifecycle tells
	}
	if err != nil {
		return cannotProvide(name, err)
	}
	// The record of the namespace's own creation names the server.
	return a.AddAnnotation("provide-namespace.admission.atoll.dev/provided", name)
}

// missing gives the verdict on a request if it needs a namespace that does not exist,
// and the user may create the object; otherwise the zero value.
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
	// Who applies an object has been asked for the right to patch so far.
	allowed, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "create", Namespace: name,
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource, Name: a.GetName(),
		ResourceRequest: true,
	})
	if allowed != authorizer.DecisionAllow {
		return none, err
	}
	if verdict.Provide && !a.IsDryRun() {
		return verdict, nil // making it shows whether it exists
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

// cannotProvide keeps the kind of an error: what is not possible now may be later.
func cannotProvide(namespace string, err error) error {
	if apierrors.IsServiceUnavailable(err) {
		return unreachable()
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return fmt.Errorf("provide namespace %q: %w", namespace, err)
	}
	out := *status
	out.ErrStatus.Message = fmt.Sprintf("namespace %q does not exist and cannot be provided: %s", namespace, out.ErrStatus.Message)
	return &out
}

// namespaceLifecycle is upstream's plugin, except in a dry run before which a
// namespace would have been provided, and when it cannot find out whether a
// namespace exists: it would call that an internal error.
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
