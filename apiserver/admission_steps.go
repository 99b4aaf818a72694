package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// AdmissionStep is what the server has to say about each object of a custom resource that
// somebody creates or updates, in whatever way. It has no say about subresources.
type AdmissionStep struct {
	Resource schema.GroupResource
	// Complete fills into r.Object what the server knows better than whoever asks, such as who that
	// is. It runs before policies and webhooks see the object, and again when they have changed
	// it. If one of them insists on something else, the request is refused. May be nil.
	Complete func(r *AdmissionRequest)
	// Check refuses what must not be stored. It sees the object as it would be stored, in
	// a dry run too, and changes nothing. May be nil.
	Check func(ctx context.Context, r *AdmissionRequest) error
}

// AdmissionRequest is a request to create or update an object.
type AdmissionRequest struct {
	Namespace string
	// Name is empty if one is to be generated.
	Name string
	// User is who asks, or as whom: impersonation counts.
	User    User
	UserUID string
	// Old is nil if the object is to be created. Nobody changes it.
	Old, Object *unstructured.Unstructured
}

// admissionSteps is the name of the admission plugin. It cannot be disabled: what steps fill in,
// others rely on.
const admissionSteps = "AtollAdmission"

// stepsPlugin takes the steps to objects.
type stepsPlugin struct {
	*admission.Handler
	steps map[schema.GroupResource]AdmissionStep
}

var (
	_ admission.MutationInterface   = stepsPlugin{}
	_ admission.ValidationInterface = stepsPlugin{}
)

// withSteps adds the plugin to those of o, after NamespaceLifecycle: an object in a namespace that is not
// there needs nothing else said of it.
func withSteps(o *kubeoptions.AdmissionOptions, steps []AdmissionStep) error {
	generic := o.GenericAdmission
	if slices.Contains(generic.DisablePlugins, admissionSteps) {
		return fmt.Errorf("admission plugin %s cannot be disabled, since objects would be anybody's word: leave it out of --disable-admission-plugins", admissionSteps)
	}
	plugin := stepsPlugin{admission.NewHandler(admission.Create, admission.Update), map[schema.GroupResource]AdmissionStep{}}
	for _, step := range steps {
		if _, twice := plugin.steps[step.Resource]; twice {
			return fmt.Errorf("there are two admission steps for %s: make them one", step.Resource)
		}
		plugin.steps[step.Resource] = step
	}
	generic.Plugins.Register(admissionSteps, func(io.Reader) (admission.Interface, error) { return plugin, nil })
	order := slices.Clone(generic.RecommendedPluginOrder)
	generic.RecommendedPluginOrder = slices.Insert(order, slices.Index(order, lifecycle.PluginName)+1, admissionSteps)
	return nil
}

// Admit implements admission.MutationInterface.
func (p stepsPlugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if step, r, ok := p.request(a); ok && step.Complete != nil {
		step.Complete(r)
	}
	return nil
}

// errReplaced is of an object in which something that the server filled in was replaced.
var errReplaced = errors.New("a mutating policy or webhook changes what the server fills in: have it leave that alone")

// Validate implements admission.ValidationInterface.
func (p stepsPlugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	step, r, ok := p.request(a)
	if !ok {
		return nil
	}
	if step.Complete != nil {
		again := *r
		again.Object = r.Object.DeepCopy()
		step.Complete(&again)
		if !equality.Semantic.DeepEqual(again.Object.Object, r.Object.Object) {
			return admission.NewForbidden(a, errReplaced)
		}
	}
	if step.Check != nil {
		return step.Check(ctx, r)
	}
	return nil
}

// request gives the step for a request, if there is one.
func (p stepsPlugin) request(a admission.Attributes) (none AdmissionStep, _ *AdmissionRequest, ok bool) {
	step, ok := p.steps[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return none, nil, false
	}
	object, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok {
		return none, nil, false
	}
	r := &AdmissionRequest{Namespace: a.GetNamespace(), Name: a.GetName(), Object: object}
	if who := a.GetUserInfo(); who != nil {
		r.User, r.UserUID = User{who.GetName(), who.GetGroups()}, who.GetUID()
	}
	if a.GetOperation() == admission.Update {
		if r.Old, ok = a.GetOldObject().(*unstructured.Unstructured); !ok {
			return none, nil, false
		}
	}
	return step, r, true
}
