package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/warning"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// AdmissionStep is the server's own admission for one custom resource, or for all
// resources of some groups. It runs for each create and update of an object, however
// requested, but not for subresources.
type AdmissionStep struct {
	Resource schema.GroupResource
	// GroupSuffix, if not empty, replaces Resource: the step runs for all resources of
	// the groups with this suffix.
	GroupSuffix string
	// Complete sets the fields of r.Object that the server determines, such as the
	// requesting user. It runs before policies and webhooks see the object, and again
	// after they have changed it. If one of them insists on another value, the request
	// is rejected. May be nil.
	Complete func(r *AdmissionRequest)
	// Resolve sets fields that the server reads from elsewhere, or rejects the object. It runs once, before Complete. May be nil.
	Resolve func(ctx context.Context, r *AdmissionRequest) error
	// Check rejects objects that must not be stored. It sees the object as it would be
	// stored, also in a dry run, and changes nothing. May be nil.
	Check func(ctx context.Context, r *AdmissionRequest) error
	// CheckDelete rejects the deletion of r.Old, also as one of a collection. May be nil.
	CheckDelete func(ctx context.Context, r *AdmissionRequest) error
}

// AdmissionRequest is a request to create, update or delete an object.
type AdmissionRequest struct {
	Namespace string
	// Name is empty if it is to be generated.
	Name string
	// User is the requesting user, or with impersonation the impersonated one.
	User    User
	UserUID string
	// Old is nil on create, and Object on delete. Steps must not change Old.
	Old, Object *unstructured.Unstructured
}

// admissionSteps is the name of the admission plugin. It cannot be disabled: other
// components rely on the fields that the steps set.
const admissionSteps = "AtollAdmission"

// stepsPlugin runs the steps.
type stepsPlugin struct {
	*admission.Handler
	steps    map[schema.GroupResource]AdmissionStep
	suffixes []AdmissionStep
}

var (
	_ admission.MutationInterface   = stepsPlugin{}
	_ admission.ValidationInterface = stepsPlugin{}
)

// withSteps adds the plugin after NamespaceLifecycle: an object in a missing namespace
// needs no further check.
func withSteps(o *kubeoptions.AdmissionOptions, steps []AdmissionStep) error {
	plugin, err := NewAdmissionSteps(steps)
	if err != nil {
		return err
	}
	return addRequired(o, admissionSteps, lifecycle.PluginName, plugin, "users could then set the fields that the server sets")
}

// NewAdmissionSteps returns a plugin that runs the steps.
func NewAdmissionSteps(steps []AdmissionStep) (admission.Interface, error) {
	plugin := stepsPlugin{admission.NewHandler(admission.Create, admission.Update, admission.Delete), map[schema.GroupResource]AdmissionStep{}, nil}
	for _, step := range steps {
		if step.GroupSuffix != "" {
			plugin.suffixes = append(plugin.suffixes, step)
			continue
		}
		if _, twice := plugin.steps[step.Resource]; twice {
			return nil, fmt.Errorf("there are two admission steps for %s: merge them", step.Resource)
		}
		plugin.steps[step.Resource] = step
	}
	return plugin, nil
}

// Warn adds a warning to the answer to a request. ctx is that of a step.
func Warn(ctx context.Context, text string) { warning.AddWarning(ctx, "", text) }

// Admit implements admission.MutationInterface.
func (p stepsPlugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	step, r, ok := p.request(a)
	if !ok || r.Object == nil {
		return nil
	}
	if step.Resolve != nil {
		if err := step.Resolve(ctx, r); err != nil {
			return err
		}
	}
	if step.Complete != nil {
		step.Complete(r)
	}
	return nil
}

// errReplaced is the error for an object in which a field that the server had set was
// changed.
var errReplaced = errors.New("a mutating policy or webhook changes a field that the server sets: exclude that field from its changes")

// Validate implements admission.ValidationInterface.
func (p stepsPlugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	step, r, ok := p.request(a)
	if !ok {
		return nil
	}
	if r.Object == nil {
		if step.CheckDelete != nil {
			return step.CheckDelete(ctx, r)
		}
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

// request returns the step for a request, if there is one.
func (p stepsPlugin) request(a admission.Attributes) (none AdmissionStep, _ *AdmissionRequest, ok bool) {
	step, ok := p.step(a.GetResource().GroupResource())
	if !ok || a.GetSubresource() != "" {
		return none, nil, false
	}
	r := &AdmissionRequest{Namespace: a.GetNamespace(), Name: a.GetName()}
	if a.GetOperation() == admission.Delete {
		// Of a collection, each object is validated by itself, and the whole without any.
		if r.Old, ok = a.GetOldObject().(*unstructured.Unstructured); !ok {
			return none, nil, false
		}
		r.Name = r.Old.GetName()
	} else if r.Object, ok = a.GetObject().(*unstructured.Unstructured); !ok {
		return none, nil, false
	}
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

// step returns the step for a resource, if there is one.
func (p stepsPlugin) step(resource schema.GroupResource) (AdmissionStep, bool) {
	if step, ok := p.steps[resource]; ok {
		return step, true
	}
	for _, step := range p.suffixes {
		if strings.HasSuffix(resource.Group, step.GroupSuffix) {
			return step, true
		}
	}
	return AdmissionStep{}, false
}
