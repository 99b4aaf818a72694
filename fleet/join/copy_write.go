package join

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/fleet/names"
)

// copyManager is the field manager of copied objects.
const copyManager = "atoll-adopt"

// ErrUnchecked is returned by Check if nothing is wrong so far, but Atoll lacks the namespace of some copies, so that
// they could not be checked.
var ErrUnchecked = errors.New("the namespace does not exist in Atoll")

// Create checks all objects with Atoll, creates the namespaces that are missing, and then the objects, one
// after the other. It calls done after each. If one fails, the error says which were created; Create can be
// repeated with a new plan.
func (p *CopyPlan) Create(ctx context.Context, done func(Copy)) error {
	if err := p.Check(ctx); err != nil && !errors.Is(err, ErrUnchecked) {
		return err
	}
	var made []string
	for _, ns := range p.namespaces {
		_, err := p.atoll.Resource(namespaceResource).Create(ctx, ns, metav1.CreateOptions{FieldManager: copyManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create namespace %s: %w", ns.GetName(), err)
		}
		made = append(made, ns.GetName())
	}
	if len(made) > 0 {
		if err := p.Check(ctx); err != nil {
			return fmt.Errorf("%w\nOnly namespace %s was created", err, names.List(made))
		}
	}
	for _, ns := range p.adopted {
		if err := ns.Adopt(ctx, p.atoll, nil); err != nil {
			return fmt.Errorf("adopt namespace %s in cluster %s: %w. An administrator of the fleet can run `atoll adopt namespace/%s`", ns.Name.Name, p.Cluster, err, ns.Name.Name)
		}
	}
	for i, one := range p.Copies {
		if _, err := p.create(ctx, one, nil); err != nil {
			err = fmt.Errorf("create %s: %w", one.Name, err)
			if i > 0 {
				return fmt.Errorf("%w\n%d of %d objects were created, and the others were not: repair the cause and run the same command again", err, i, len(p.Copies))
			}
			return err
		}
		done(one)
	}
	return nil
}

// Check submits all objects without storing them. It returns an error if Atoll rejects any of them, or would
// store another pod template than the cluster has: to take over such an object would replace its pods. It
// adds other differences to the notes.
func (p *CopyPlan) Check(ctx context.Context) error {
	missing := map[string]bool{}
	for _, ns := range p.namespaces {
		missing[ns.GetName()] = true
	}
	var failed, unchecked error
	for _, one := range p.Copies {
		stored, err := p.create(ctx, one, []string{metav1.DryRunAll})
		if apierrors.IsNotFound(err) && missing[one.Namespace] {
			unchecked = fmt.Errorf("%w: namespace %s, so that its objects cannot be checked before it is created", ErrUnchecked, one.Namespace)
			continue
		}
		if apierrors.IsNotFound(err) && p.hasRoleOf(one) {
			continue // the role does not exist yet
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("Atoll would reject %s: %w", one.Name, err))
			continue
		}
		failed = errors.Join(failed, p.compare(one, stored))
	}
	if failed != nil {
		return failed // the caller must not take it for unchecked
	}
	return unchecked
}

func (p *CopyPlan) create(ctx context.Context, one Copy, dryRun []string) (*unstructured.Unstructured, error) {
	return p.resource(one).Create(ctx, one.Object, metav1.CreateOptions{FieldManager: copyManager, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
}

func (p *CopyPlan) resource(one Copy) dynamic.ResourceInterface {
	return p.atoll.Resource(one.kind.GVR()).Namespace(one.Namespace)
}

// compare compares the object that the cluster would get with the one that it has. Fields that Atoll adds or
// changes would change the running object.
func (p *CopyPlan) compare(one Copy, stored *unstructured.Unstructured) error {
	desired := one.kind.Prepare(stored, p.Cluster, nil)
	if p.overrider != nil {
		var err error
		if desired, err = p.overrider.apply(one, desired); err != nil {
			return err
		}
	}
	has := one.kind.Prepare(one.Object, p.Cluster, nil)
	paths, pods := differing(one.kind, desired, has)
	switch {
	case pods:
		return fmt.Errorf("%s would get other pods in %s: Atoll's admission or an override of a policy would change %s. "+
			"Exempt the object from that, or change it in %s first", one.Name, p.Cluster, names.List(paths), p.Cluster)
	case len(paths) > 0:
		p.noteOnce(fmt.Sprintf("%s changes in %s: Atoll's admission, its defaults or an override of a policy set %s", one.Name, p.Cluster, names.List(paths)))
	}
	return nil
}

func (p *CopyPlan) noteOnce(note string) {
	for _, other := range p.Notes {
		if other == note {
			return
		}
	}
	p.Notes = append(p.Notes, note)
}

// hasRoleOf reports whether the role of a binding is among the copies.
func (p *CopyPlan) hasRoleOf(binding Copy) bool {
	if !strings.HasSuffix(binding.Kind, "Binding") {
		return false
	}
	refs, err := binding.kind.Needs(binding.live)
	if err != nil || len(refs) != 1 {
		return false
	}
	for _, one := range p.Copies {
		if referenceTo(one.Name) == refs[0] {
			return true
		}
	}
	return false
}

// Manifests returns the objects to create, with the namespaces that Atoll lacks, as a List.
func (p *CopyPlan) Manifests() map[string]any {
	items := []any{}
	for _, ns := range p.namespaces {
		items = append(items, ns.Object)
	}
	for _, one := range p.Copies {
		items = append(items, one.Object.Object)
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
}
