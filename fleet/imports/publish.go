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

// recheck is when objects that keep a type from changing are looked for again: nobody
// watches them.
const recheck = 15 * time.Second

// publication is what became of one version.
type publication struct {
	submitted, published bool
	reason, message      string
}

// wants tells whether a version is to be published, and whether a person said so of it.
func (f *facts) wants(v *version) (wanted, explicit bool) {
	if v.existing != nil && v.existing.Spec.Publish != nil {
		return *v.existing.Spec.Publish, true
	}
	// With the last cluster that has it, a policy has nothing more to say.
	return len(v.imports) > 0 && f.policy != nil && f.policy.Spec.Publish == v1alpha1.PublishAutomatically, false
}

// publish brings the CRD of a type in line with what is negotiated and wanted, and
// says of each version what became of it.
func (c *controller) publish(ctx context.Context, f *facts) error {
	if f.enforced() {
		f.sayEnforced()
		return nil
	}
	if builtIn(f.gr.Group) {
		f.say(publication{reason: v1alpha1.ReasonReservedGroup,
			message: fmt.Sprintf("group %q belongs to Kubernetes, so no CustomResourceDefinition may define it here", f.gr.Group)})
		return nil
	}
	plan := f.plan()
	if f.crd != nil && f.crd.DeletionTimestamp != nil {
		f.say(publication{reason: v1alpha1.ReasonNotEstablished, message: "the CustomResourceDefinition is being deleted; if the type is still to be published, it is made anew then"})
		return nil
	}
	if len(plan.versions) == 0 {
		return c.withdraw(ctx, f)
	}
	return c.submit(ctx, f, plan)
}

func (f *facts) say(p publication) {
	for _, v := range f.versions {
		if v.published.reason == "" {
			v.published = p
		}
	}
}

func (f *facts) sayEnforced() {
	for _, v := range f.versions {
		switch {
		case v.standing.typ == nil:
			v.published = publication{reason: v1alpha1.ReasonVersionNotEnforced, message: f.noVersion(v.name)}
		case f.crd != nil && !isServed(f.crd):
			v.published = publication{reason: v1alpha1.ReasonNotEstablished, message: unestablished(f.crd)}
		default:
			v.published = publication{published: true, reason: v1alpha1.ReasonEnforced, message: "the control plane serves the type, as " + v.standing.by + " defines it"}
		}
	}
}

// withdraw removes the CRD of a type that is not to be published, unless objects exist:
// they would go with it.
func (c *controller) withdraw(ctx context.Context, f *facts) error {
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
			c.queue.AddAfter(key{typ: f.gr}, recheck)
			f.stays(publication{submitted: true, published: isServed(f.crd), reason: v1alpha1.ReasonObjectsExist, message: fmt.Sprintf(
				"the type is not to be published any more, and objects of it exist, which would go with it: delete them (`kubectl get %s -A` lists them), or set spec.publish to true", f.gr)})
			return nil
		}
		break // whatever version they were written in, one shows them all
	}
	// The version too: if somebody has taken our label off meanwhile, it is theirs.
	uid, rv := f.crd.UID, f.crd.ResourceVersion
	err := c.Dynamic.Resource(crdResource).Delete(ctx, f.crd.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv}})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete CustomResourceDefinition %s, which is not to be published any more: %w", f.crd.Name, err)
	}
	c.Log.Info("a type is not published any more", "crd", f.crd.Name)
	f.crd = nil
	f.say(publication{reason: v1alpha1.ReasonNotRequested, message: notRequested(f.gr.Group, true)})
	return nil
}

// stays says p of the versions that the CRD has.
func (f *facts) stays(p publication) {
	for _, v := range f.versions {
		if v.standing.published {
			v.published = p
		}
	}
}

// submit applies the CRD.
func (c *controller) submit(ctx context.Context, f *facts, plan plan) error {
	desired, err := plan.crd(f)
	if err != nil {
		c.refused(f, plan, err)
		return nil
	}
	if f.crd != nil {
		desired.SetUID(f.crd.UID)
	}
	// Where there was none whoever was faster wins, and is not overruled.
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
			is.reason, is.message = v1alpha1.ReasonObjectsExist, "the version is not to be published any more, and objects may be stored in it: it goes when the type does"
		case v.waits != "":
			// It is not what it might be by now.
			is.reason, is.message = v1alpha1.ReasonUpdateWaits, bounded(v.waits)
		}
		v.published = is
	}
	return nil
}

// refused says why the control plane does not take a CRD. Nobody is told that a narrower
// type fits that nobody sees.
func (c *controller) refused(f *facts, plan plan, err error) {
	c.Log.Warn("the control plane refuses a negotiated type", "crd", f.gr.String(), "error", err)
	for _, v := range plan.versions {
		message := bounded("the CustomResourceDefinition cannot be made: " + err.Error())
		v.published = publication{reason: v1alpha1.ReasonRefused, message: message}
		if v.standing.published {
			v.published.submitted, v.published.published = true, f.crd != nil && isServed(f.crd)
			v.stay(message)
		}
	}
}

// unestablished says why a CRD is not served.
func unestablished(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, name := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.NonStructuralSchema, apiextensionsv1.KubernetesAPIApprovalPolicyConformant} {
		for _, c := range crd.Status.Conditions {
			bad := apiextensionsv1.ConditionFalse
			if name == apiextensionsv1.NonStructuralSchema {
				bad = apiextensionsv1.ConditionTrue
			}
			if c.Type == name && c.Status == bad {
				return bounded(fmt.Sprintf("CustomResourceDefinition %s is not served: %s", crd.Name, c.Message))
			}
		}
	}
	return fmt.Sprintf("CustomResourceDefinition %s is not served yet", crd.Name)
}

// spare keeps a published type from becoming narrower while stored objects have
// fields that it would drop.
func (c *controller) spare(ctx context.Context, f *facts, v *version) error {
	if !v.standing.published || v.typ == nil || len(check(v.standing.typ, v.typ)) == 0 {
		return nil
	}
	lost, err := c.wouldLose(ctx, f.gr.WithVersion(v.name), v.typ.Schema)
	if err != nil {
		return err
	}
	if lost != "" {
		c.queue.AddAfter(key{typ: f.gr}, recheck)
		v.stay(fmt.Sprintf("imports with schemaUpdateStrategy UpdatePublished would narrow the type, and %s: take it out of the object, or give the imports another strategy", lost))
	}
	return nil
}

// wouldLose names an object that has fields which a schema would drop, if one does.
func (c *controller) wouldLose(ctx context.Context, gvr kschema.GroupVersionResource, props *schema.Props) (string, error) {
	options := metav1.ListOptions{Limit: 200}
	for {
		some, err := c.Dynamic.Resource(gvr).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return "", nil // it is not served (yet)
		}
		if err != nil {
			return "", fmt.Errorf("see what a narrower %s would do to its objects: %w", gvr.GroupResource(), err)
		}
		for i := range some.Items {
			if unknown := schema.Unknown(props, some.Items[i].Object); len(unknown) > 0 {
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
		return false, fmt.Errorf("see whether objects of %s exist: %w", gvr.GroupResource(), err)
	}
	return len(some.Items) > 0, nil
}
