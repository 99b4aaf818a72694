package imports

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// recheckInterval is how often objects that block a change of a type are listed again: they are
// not watched.
const recheckInterval = 15 * time.Second

// publication is the outcome of publishing one version.
type publication struct {
	submitted, published bool
	reason, message      string
}

// wants reports whether a version is to be published, and whether a user requested that
// explicitly.
func (f *typeState) wants(v *version) (wanted, explicit bool) {
	if v.existing != nil && v.existing.Spec.Publish != nil {
		return *v.existing.Spec.Publish, true
	}
	// Once the last cluster that serves the version is gone, the policy no longer applies.
	return len(v.imports) > 0 && f.policy != nil && f.policy.Spec.Publish == v1alpha1.PublishAutomatically, false
}

// publish brings the CRD of a type in line with the negotiated versions to publish, and sets
// the outcome of each version.
func (c *controller) publish(ctx context.Context, f *typeState) error {
	if f.enforced() {
		f.setEnforced()
		return nil
	}
	if builtIn(f.gr.Group) {
		f.setPublication(publication{reason: v1alpha1.ReasonReservedGroup,
			message: fmt.Sprintf("group %q belongs to Kubernetes and cannot be defined by a CustomResourceDefinition", f.gr.Group)})
		return nil
	}
	plan := f.plan()
	if f.crd != nil && f.crd.DeletionTimestamp != nil {
		f.setPublication(publication{reason: v1alpha1.ReasonNotEstablished, message: "the CustomResourceDefinition is being deleted; it will be recreated if the type is still to be published"})
		return nil
	}
	if len(plan.versions) == 0 {
		return c.withdraw(ctx, f)
	}
	return c.submit(ctx, f, plan)
}

func (f *typeState) setPublication(p publication) {
	for _, v := range f.versions {
		if v.published.reason == "" {
			v.published = p
		}
	}
}

func (f *typeState) setEnforced() {
	for _, v := range f.versions {
		switch {
		case v.current.typ == nil:
			v.published = publication{reason: v1alpha1.ReasonVersionNotEnforced, message: f.noVersion(v.name)}
		case f.crd != nil && !isServed(f.crd):
			v.published = publication{reason: v1alpha1.ReasonNotEstablished, message: unestablished(f.crd)}
		default:
			v.published = publication{published: true, reason: v1alpha1.ReasonEnforced, message: "the control plane serves the type, as " + v.current.by + " defines it"}
		}
	}
}

// withdraw deletes the CRD of a type that is no longer to be published, unless objects exist:
// they would be deleted with it.
func (c *controller) withdraw(ctx context.Context, f *typeState) error {
	if f.crd == nil {
		return nil
	}
	for _, v := range f.crd.Spec.Versions {
		if !v.Served {
			continue
		}
		exist, err := c.objectsExist(ctx, f.gr.WithVersion(v.Name))
		if err != nil {
			return err
		}
		if exist {
			c.queue.AddAfter(key{typ: f.gr}, recheckInterval)
			f.setPublished(publication{submitted: true, published: isServed(f.crd), reason: v1alpha1.ReasonObjectsExist, message: fmt.Sprintf(
				"the type is no longer to be published, but objects of it exist and would be deleted with it: delete them (`kubectl get %s -A` lists them), or set spec.publish to true", f.gr)})
			return nil
		}
		break // any version lists all objects
	}
	// The resource version too: if a user has removed our label meanwhile, the CRD is theirs.
	uid, rv := f.crd.UID, f.crd.ResourceVersion
	err := c.Dynamic.Resource(crdResource).Delete(ctx, f.crd.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv}})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete CustomResourceDefinition %s, which is no longer to be published: %w", f.crd.Name, err)
	}
	c.Log.Info("deleted the CustomResourceDefinition of a type that is no longer published", "crd", f.crd.Name)
	f.crd = nil
	f.setPublication(publication{reason: v1alpha1.ReasonNotRequested, message: notRequested(f.gr.Group, true)})
	return nil
}

// setPublished sets the outcome of the versions that the CRD has.
func (f *typeState) setPublished(p publication) {
	for _, v := range f.versions {
		if v.current.published {
			v.published = p
		}
	}
}

// submit applies the CRD.
func (c *controller) submit(ctx context.Context, f *typeState, plan plan) error {
	desired, err := plan.crd(f)
	if err != nil {
		c.refused(f, plan, err)
		return nil
	}
	if f.crd != nil {
		desired.SetUID(f.crd.UID)
	}
	// If there was no CRD, apply without force, so that a faster writer is not overwritten.
	u, err := c.Dynamic.Resource(crdResource).Apply(ctx, f.gr.String(), desired, metav1.ApplyOptions{FieldManager: NegotiationManager, Force: f.crd != nil})
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
		c.refused(f, plan, err)
		return nil
	case err != nil:
		return fmt.Errorf("apply CustomResourceDefinition %s: %w", f.gr, err)
	}
	crd, err := asCRD(u)
	if err != nil {
		return err
	}
	p := publication{submitted: true, published: true, reason: v1alpha1.ReasonPublished, message: "the control plane serves the type"}
	if !isServed(crd) {
		p = publication{submitted: true, reason: v1alpha1.ReasonNotEstablished, message: unestablished(crd)}
	}
	for name, v := range f.versions {
		if !slices.ContainsFunc(plan.versions, func(v *version) bool { return v.name == name }) {
			continue
		}
		is := p
		switch wanted, _ := f.wants(v); {
		case !is.published:
		case !wanted:
			is.reason, is.message = v1alpha1.ReasonObjectsExist, "the version is no longer to be published, but objects may be stored in it: it will be removed with the type"
		case v.frozenReason != "":
			// The published type is frozen.
			is.reason, is.message = v1alpha1.ReasonUpdateWaits, truncate(v.frozenReason)
		}
		v.published = is
	}
	return nil
}

// refused sets the outcome if the control plane rejects a CRD. No cluster is reported as
// compatible with a narrower type that is not published.
func (c *controller) refused(f *typeState, plan plan, err error) {
	c.Log.Warn("the control plane rejected a negotiated type", "crd", f.gr.String(), "error", err)
	for _, v := range plan.versions {
		message := truncate("the CustomResourceDefinition was rejected: " + err.Error())
		v.published = publication{reason: v1alpha1.ReasonRefused, message: message}
		if v.current.published {
			v.published.submitted, v.published.published = true, f.crd != nil && isServed(f.crd)
			v.freeze(message)
		}
	}
}

// unestablished returns why a CRD is not served.
func unestablished(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, name := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.NonStructuralSchema, apiextensionsv1.KubernetesAPIApprovalPolicyConformant} {
		for _, c := range crd.Status.Conditions {
			bad := apiextensionsv1.ConditionFalse
			if name == apiextensionsv1.NonStructuralSchema {
				bad = apiextensionsv1.ConditionTrue
			}
			if c.Type == name && c.Status == bad {
				return truncate(fmt.Sprintf("CustomResourceDefinition %s is not served: %s", crd.Name, c.Message))
			}
		}
	}
	return fmt.Sprintf("CustomResourceDefinition %s is not served yet", crd.Name)
}

// protectObjects freezes a published type that would become narrower while stored objects have
// fields that would be dropped.
func (c *controller) protectObjects(ctx context.Context, f *typeState, v *version) error {
	if !v.current.published || v.typ == nil || len(check(v.current.typ, v.typ)) == 0 {
		return nil
	}
	lost, err := c.findDataLoss(ctx, f.gr.WithVersion(v.name), v.typ.Schema)
	if err != nil {
		return err
	}
	if lost != "" {
		c.queue.AddAfter(key{typ: f.gr}, recheckInterval)
		v.freeze(fmt.Sprintf("imports with schemaUpdateStrategy UpdatePublished would narrow the type, but %s: remove the field from the object, or change the strategy of the imports", lost))
	}
	return nil
}

// findDataLoss describes the first object with fields that a schema would drop; "" means that
// no object has any.
func (c *controller) findDataLoss(ctx context.Context, gvr kschema.GroupVersionResource, props *schema.Props) (string, error) {
	options := metav1.ListOptions{Limit: 200}
	for {
		some, err := c.Dynamic.Resource(gvr).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return "", nil // it is not served (yet)
		}
		if err != nil {
			return "", fmt.Errorf("check the objects of %s against a narrower schema: %w", gvr.GroupResource(), err)
		}
		for i := range some.Items {
			if unknown := schema.UnknownPaths(props, some.Items[i].Object); len(unknown) > 0 {
				return fmt.Sprintf("%s would lose %s", nameOf(&some.Items[i]), strings.Join(unknown[:min(3, len(unknown))], ", ")), nil
			}
		}
		if options.Continue = some.GetContinue(); options.Continue == "" {
			return "", nil
		}
	}
}

func nameOf(u *unstructured.Unstructured) string {
	name := u.GetName()
	if u.GetNamespace() != "" {
		name = u.GetNamespace() + "/" + name
	}
	return u.GetKind() + " " + name
}

func (c *controller) objectsExist(ctx context.Context, gvr kschema.GroupVersionResource) (bool, error) {
	some, err := c.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return false, fmt.Errorf("check whether objects of %s exist: %w", gvr.GroupResource(), err)
	}
	return len(some.Items) > 0, nil
}
