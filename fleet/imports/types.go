package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// typeState is the input of the negotiation of one type.
type typeState struct {
	gr       kschema.GroupResource
	crd      *apiextensionsv1.CustomResourceDefinition // the control plane's CRD, or nil
	own      map[string]*schema.Type                   // types that the control plane serves without a CRD
	policy   *v1alpha1.TypePolicy
	versions map[string]*version
}

// version is one version of a type.
type version struct {
	name     string
	imports  []*imported // in order of creation
	existing *negotiated // or nil
	current  currentType

	offers          []offer      // one for each import
	typ             *schema.Type // the negotiated type, or nil
	compatibilities []compatibility
	frozenReason    string // why the published type is frozen
	published       publication
}

// compatible counts the clusters that accept the negotiated type.
func (v *version) compatible() (n int) {
	for _, j := range v.compatibilities {
		if j.compatible {
			n++
		}
	}
	return n
}

// freeze keeps the published type unchanged and evaluates the offers against it.
func (v *version) freeze(why string) {
	v.frozenReason = why
	v.current.frozen = true
	v.typ, v.compatibilities = negotiate(v.current, v.offers)
}

// enforced reports whether a user or the control plane itself defines the type.
func (f *typeState) enforced() bool { return f.crd != nil && !isOurs(f.crd) || len(f.own) > 0 }

// reconcileType negotiates a type with all its versions, and publishes it if requested.
func (c *controller) reconcileType(ctx context.Context, gr kschema.GroupResource) error {
	f, err := c.load(ctx, gr)
	if err != nil {
		return err
	}
	parsed := map[string]*schema.Type{}
	for _, v := range f.versions {
		v.offers = f.offersOf(v, parsed)
		v.typ, v.compatibilities = negotiate(v.current, v.offers)
		if err := c.protectObjects(ctx, f, v); err != nil {
			return err
		}
	}
	// The published type narrows before any cluster is reported as compatible with it.
	if err := c.publish(ctx, f); err != nil {
		return err
	}
	if err := c.writeCompatibility(ctx, f); err != nil {
		return err
	}
	for _, v := range f.versions {
		if err := c.writeNegotiated(ctx, f, v); err != nil {
			return err
		}
	}
	return nil
}

// load reads the state of a type. The CRD is read live: whether a user created it determines
// what the controller may do with it.
func (c *controller) load(ctx context.Context, gr kschema.GroupResource) (*typeState, error) {
	f := &typeState{gr: gr, versions: map[string]*version{}}
	f.policy, _ = c.policyFor(gr.Group)
	u, err := c.Dynamic.Resource(crdResource).Get(ctx, gr.String(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("read CustomResourceDefinition %s: %w", gr, err)
	default:
		if f.crd, err = asCRD(u); err != nil {
			return nil, err
		}
	}
	at := func(name string) *version {
		if f.versions[name] == nil {
			f.versions[name] = &version{name: name}
		}
		return f.versions[name]
	}
	for _, n := range c.negotiated.By(byType, gr.String()) {
		at(n.Spec.GroupVersion.Version).existing = n
	}
	for _, i := range c.imports.By(byType, gr.String()) {
		v := at(i.Spec.GroupVersion.Version)
		v.imports = append(v.imports, i)
	}
	if f.crd != nil && f.crd.DeletionTimestamp == nil && f.crd.Labels[v1alpha1.SharedLabel] != "true" && !ownGroup(gr.Group) {
		// A user's CRD is a type even if no member serves it: its users should see that.
		for _, v := range f.crd.Spec.Versions {
			if v.Served {
				at(v.Name)
			}
		}
	}
	if f.crd == nil && builtIn(gr.Group) {
		if f.own, err = c.ownTypes(ctx, gr, f.versions); err != nil {
			return nil, err
		}
	}
	for _, v := range f.versions {
		slices.SortFunc(v.imports, olderImport)
		v.current = f.currentOf(v)
	}
	return f, nil
}

func olderImport(a, b *imported) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// currentOf returns the control plane's existing definition of a version.
func (f *typeState) currentOf(v *version) currentType {
	if len(f.own) > 0 {
		return currentType{enforced: true, typ: f.own[v.name], by: "the control plane itself", remedy: "Upgrade the cluster"}
	}
	if f.crd == nil {
		return currentType{}
	}
	all := schema.FromCRD(f.crd)
	i := slices.IndexFunc(all, func(t schema.Type) bool { return t.Version == v.name })
	switch {
	case !isOurs(f.crd) && i < 0:
		return currentType{enforced: true}
	case !isOurs(f.crd):
		return currentType{enforced: true, typ: &all[i], by: "CustomResourceDefinition " + f.crd.Name + " of the control plane",
			remedy: "Update the cluster's CustomResourceDefinition, or remove from the control plane's what the cluster does not know"}
	case i < 0:
		return currentType{}
	}
	out := currentType{published: true, typ: &all[i]}
	if n := v.existing; n != nil && slices.Contains(strings.Split(f.crd.Annotations[v1alpha1.PublishedTypesAnnotation], ","), v.name+"="+n.digest) {
		// This is the definition that was applied. If the CRD differs, a user has edited it.
		if t, err := typeOf(&n.Spec.CommonAPIResourceSpec, []byte(n.schema.Value())); err == nil {
			out.typ = t
		}
	}
	return out
}

// offersOf returns the offers of a version. Members that serve the same schema share its type.
func (f *typeState) offersOf(v *version, parsed map[string]*schema.Type) []offer {
	var out []offer
	for _, i := range v.imports {
		o := offer{cluster: i.Spec.Location, strategy: f.strategy(i)}
		if t, known := parsed[i.digest]; known {
			o.typ = t
		} else if t, err := typeOf(&i.Spec.CommonAPIResourceSpec, []byte(i.schema.Value())); err != nil {
			o.problem = err.Error()
		} else {
			o.typ, parsed[i.digest] = t, t
		}
		out = append(out, o)
	}
	return out
}

// strategy returns the effective strategy of an import.
func (f *typeState) strategy(i *imported) v1alpha1.SchemaUpdateStrategy {
	switch {
	case i.Spec.SchemaUpdateStrategy != "":
		return i.Spec.SchemaUpdateStrategy
	case f.policy != nil && f.policy.Spec.SchemaUpdateStrategy != "":
		return f.policy.Spec.SchemaUpdateStrategy
	}
	return v1alpha1.UpdateUnpublished
}

// writeCompatibility writes the condition Compatible of the imports.
func (c *controller) writeCompatibility(ctx context.Context, f *typeState) error {
	for _, v := range f.versions {
		for n, i := range v.imports {
			j := v.compatibilities[n]
			if v.current.enforced && v.current.typ == nil {
				j = compatibility{reason: v1alpha1.ReasonVersionNotEnforced, message: f.noVersion(v.name)}
			}
			if err := c.writeCompatible(ctx, i, j, f.strategy(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// noVersion is the message for a version of an enforced type that is not served.
func (f *typeState) noVersion(name string) string {
	if f.crd == nil {
		return fmt.Sprintf("the control plane defines %s itself and does not serve version %s: use a version that it serves", f.gr, name)
	}
	return fmt.Sprintf("CustomResourceDefinition %s of the control plane does not serve version %s: add it there, or use a version that it serves", f.crd.Name, name)
}

func (c *controller) writeCompatible(ctx context.Context, i *imported, j compatibility, strategy v1alpha1.SchemaUpdateStrategy) error {
	compatible := metav1.Condition{Type: v1alpha1.ImportCompatible, Status: metav1.ConditionFalse, Reason: j.reason, Message: j.message, ObservedGeneration: i.Generation}
	if j.compatible {
		compatible.Status = metav1.ConditionTrue
	}
	changed := c.stamp(meta.FindStatusCondition(i.Status.Conditions, v1alpha1.ImportCompatible), &compatible)
	if !changed && i.Status.SchemaUpdateStrategy == strategy && i.Status.ObservedGeneration == i.Generation {
		return nil
	}
	status := v1alpha1.APIResourceImportStatus{Conditions: []metav1.Condition{compatible}, SchemaUpdateStrategy: strategy, ObservedGeneration: i.Generation}
	return c.applyStatus(ctx, v1alpha1.APIResourceImportResource, "APIResourceImport", i, NegotiationManager, &status)
}

// applyStatus writes the status of exactly the object that was read: its UID is a precondition.
func (c *controller) applyStatus(ctx context.Context, gvr kschema.GroupVersionResource, kind string, of metav1.Object, manager string, status any) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err == nil {
		u := object(kind, of.GetName())
		u.SetUID(of.GetUID())
		u.Object["status"] = fields
		_, err = c.Dynamic.Resource(gvr).ApplyStatus(ctx, of.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("apply the status of %s %s: %w", kind, of.GetName(), err)
	}
	return nil
}
