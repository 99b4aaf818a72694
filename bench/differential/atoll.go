package differential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// Atoll is a client of a server that serves the Providers demo and demo5.
type Atoll struct {
	API dynamic.Interface
	// REST reads the changes of plans, which are not objects.
	REST rest.Interface
}

// NewAtoll returns a client for a server.
func NewAtoll(config *rest.Config) (*Atoll, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // the provider deprecates some arguments
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	plain := rest.CopyConfig(config)
	plain.GroupVersion = &schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}
	plain.NegotiatedSerializer = unstructuredSerializer()
	client, err := rest.UnversionedRESTClientFor(plain)
	return &Atoll{API: api, REST: client}, err
}

// atollSide runs Atoll for one configuration, in a namespace of its own.
type atollSide struct {
	*Atoll
	namespace    string
	placeholders *placeholders
	ids          map[string]string
	// existing maps the objects that exist to their prevent_destroy.
	existing map[Address]bool
	out      *Outcome
	planned  *v1alpha1.Plan
}

const manager = "alike"

func (a *Atoll) open(ctx context.Context, dir, namespace string, demo5 bool) (*atollSide, error) {
	s := &atollSide{Atoll: a, namespace: namespace, placeholders: newPlaceholders(filepath.Join(dir, "atoll-world")), ids: map[string]string{}, existing: map[Address]bool{}}
	core := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if err := s.apply(ctx, a.API.Resource(core), map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}); err != nil {
		return nil, err
	}
	for _, name := range providerNames(demo5) {
		config := map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ProviderConfig", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"provider": name, "configuration": worldSettings(name, s.placeholders.directory)}}
		if err := s.apply(ctx, a.API.Resource(v1alpha1.ProviderConfigResource).Namespace(namespace), config); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (a *atollSide) apply(ctx context.Context, in dynamic.ResourceInterface, object map[string]any) error {
	u := &unstructured.Unstructured{Object: object}
	_, err := in.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return fmt.Errorf("apply %s/%s: %w: %s", u.GetKind(), u.GetName(), err, jsonLine(object["spec"]))
	}
	return nil
}

func (a *atollSide) client(address Address) dynamic.ResourceInterface {
	return a.API.Resource(schema.GroupVersionResource{Group: infraschema.Group(provider(address.Type)), Version: v1alpha1.ProvidersVersion, Resource: address.plural()}).Namespace(a.namespace)
}

// write creates, updates and deletes objects to match the configuration of a step.
func (a *atollSide) write(ctx context.Context, s *Step) error {
	step := s.Configuration
	objects, secrets := Objects(s, func(address string) string { return a.ids[address] })
	data := map[string]any{}
	for key, text := range secrets {
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": secretName}, "data": data}
	if err := a.apply(ctx, a.API.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(a.namespace), secret); err != nil {
		return err
	}
	for address, object := range objects {
		if err := a.replace(ctx, address, object); err != nil {
			return err
		}
		a.existing[address] = step.find(address).Lifecycle.PreventDestroy
	}
	for address, protected := range maps.Clone(a.existing) {
		if objects[address] != nil {
			continue
		}
		if protected { // OpenTofu ignores prevent_destroy once the block is gone
			a.out.Intended = append(a.out.Intended, intendedProtected)
			if err := a.patch(ctx, address, map[string]any{"spec": map[string]any{"lifecycle": map[string]any{"prevent_destroy": nil}}}); err != nil {
				return err
			}
		}
		if err := a.remove(ctx, address, slices.Contains(s.Forget, address)); err != nil {
			return err
		}
		delete(a.existing, address)
	}
	return nil
}

// replace creates or replaces an object. Server-side apply would not remove an empty set from it: see
// docs/infrastructure.md.
func (a *atollSide) replace(ctx context.Context, address Address, object map[string]any) error {
	in := a.client(address)
	fresh := &unstructured.Unstructured{Object: object}
	_, err := in.Create(ctx, fresh, metav1.CreateOptions{FieldManager: manager})
	for range 20 {
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
			break
		}
		var there *unstructured.Unstructured
		if there, err = in.Get(ctx, address.Name, metav1.GetOptions{}); err != nil {
			break
		}
		there.Object["spec"] = object["spec"]
		there.SetAnnotations(fresh.GetAnnotations())
		_, err = in.Update(ctx, there, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return fmt.Errorf("write %s: %w: %s", address, err, jsonLine(object["spec"]))
	}
	return nil
}

func (a *atollSide) patch(ctx context.Context, address Address, change map[string]any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = a.client(address).Patch(ctx, address.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (a *atollSide) remove(ctx context.Context, address Address, forget bool) error {
	if forget {
		if err := a.patch(ctx, address, map[string]any{"metadata": map[string]any{"annotations": map[string]any{infra.DeletionAnnotation: infra.DeletionForget}}}); err != nil {
			return err
		}
	}
	if err := a.client(address).Delete(ctx, address.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

func (a *atollSide) plan(ctx context.Context, s *Step) error {
	a.out, a.planned = &Outcome{}, nil
	if err := a.write(ctx, s); err != nil {
		return err
	}
	spec := v1alpha1.PlanSpec{Mode: v1alpha1.PlanNormal, Refresh: s.Refresh, Targets: references(s.Targets), Exclude: references(s.Exclude), Replace: references(s.Replace)}
	switch {
	case s.Destroy:
		spec.Mode = v1alpha1.PlanDestroy
	case s.RefreshOnly:
		spec.Mode = v1alpha1.PlanRefreshOnly
	}
	p := &v1alpha1.Plan{}
	if err := a.create(ctx, v1alpha1.PlanResource, "Plan", &spec, p); err != nil {
		return err
	}
	if err := a.wait(ctx, v1alpha1.PlanResource, p.Name, p, func() bool {
		return p.Status.Phase == v1alpha1.PlanPlanned || p.Status.Phase == v1alpha1.PlanFailed
	}); err != nil {
		return err
	}
	for _, problem := range p.Status.Problems {
		a.out.Planned.Refused = append(a.out.Planned.Refused, a.address(problem.Address))
		a.out.Planned.Messages = append(a.out.Planned.Messages, problem.Field+": "+problem.Message)
	}
	if p.Status.Phase == v1alpha1.PlanFailed && len(a.out.Planned.Refused) == 0 {
		return fmt.Errorf("plan %s failed: %s", p.Name, jsonLine(p.Status.Conditions))
	}
	a.planned = p
	return a.readPlan(ctx)
}

func references(all []Address) []v1alpha1.ObjectReference {
	var out []v1alpha1.ObjectReference
	for _, a := range all {
		out = append(out, v1alpha1.ObjectReference{Group: infraschema.Group(provider(a.Type)), Kind: a.kind(), Name: a.Name})
	}
	return out
}

// address returns the address of the object that a problem names. Generated names are unique.
func (a *atollSide) address(problem string) string {
	kind, name, _ := strings.Cut(problem, "/")
	kind, group, _ := strings.Cut(kind, ".")
	prefix, _, _ := strings.Cut(group, ".")
	for _, k := range kinds() {
		if k.apiKind == kind && provider(k.typ) == prefix {
			return Address{Type: k.typ, Name: name}.String()
		}
	}
	for typ, apiKind := range dataKinds() {
		if apiKind == kind && provider(typ) == prefix {
			return Address{Type: typ, Name: name, Data: true}.String()
		}
	}
	return problem
}

// create creates an object of infra.atoll.dev with a generated name.
func (a *atollSide) create(ctx context.Context, resource schema.GroupVersionResource, kind string, spec, into any) error {
	encoded, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"generateName": strings.ToLower(kind) + "-"}, "spec": encoded}}
	created, err := a.API.Resource(resource).Namespace(a.namespace).Create(ctx, u, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a %s: %w", kind, err)
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(created.Object, into)
}

// pollEvery is the interval at which objects are read until they are done.
const pollEvery = 30 * time.Millisecond

func (a *atollSide) wait(ctx context.Context, resource schema.GroupVersionResource, name string, into any, done func() bool) error {
	for {
		u, err := a.API.Resource(resource).Namespace(a.namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
		}
		if err != nil || done() {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w: %s", resource.Resource, name, ctx.Err(), jsonLine(u.Object["status"]))
		}
	}
}

func (a *atollSide) readPlan(ctx context.Context) error {
	text, err := a.REST.Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, "namespaces", a.namespace, "plans", a.planned.Name, "changes").
		Param("limit", "5000").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("read the changes: %w: %s", err, text)
	}
	var page struct{ Items []change.Change }
	if err := json.Unmarshal(text, &page); err != nil {
		return fmt.Errorf("read the changes: %w", err)
	}
	a.out.Planned.Changes = map[string]Change{}
	for _, c := range page.Items {
		address := Address{Type: c.Address.Type, Name: c.Address.Name, Data: c.Address.Data}
		name := address.String()
		if c.Address.Deposed != "" {
			name += " (deposed)"
		}
		if c.Drift != nil {
			a.out.Planned.Drift = append(a.out.Planned.Drift, name)
		}
		if c.Action == change.NoOp {
			continue
		}
		planned := Change{Action: string(c.Action), Reason: string(c.Reason), Importing: c.Importing != ""}
		if c.CreateFirst && c.Action == change.Replace {
			planned.Action = "create+delete"
		}
		for _, f := range c.Fields {
			if f.ForcesReplacement {
				planned.Forces = append(planned.Forces, splitPath(f.Path)[0])
			}
		}
		planned.Forces = unique(planned.Forces)
		if c.After != nil {
			after, err := decode(c.After.JSON)
			if err != nil {
				return err
			}
			for _, path := range c.After.Unknown {
				after = setPath(after, splitPath(path), unknownMarker)
			}
			for _, secret := range c.After.Sensitive {
				after = setPath(after, splitPath(secret.Path), sensitiveMarker)
			}
			planned.After = a.placeholders.attributes(address.Type, after)
		}
		a.out.Planned.Changes[name] = planned.normalized()
	}
	return nil
}

// applyPlan approves and applies the plan.
func (a *atollSide) applyPlan(ctx context.Context) error {
	s := a.planned.Status.Summary
	if s.Changes()+s.Read+s.Drift == 0 {
		return nil
	}
	if err := a.create(ctx, v1alpha1.ApprovalResource, "Approval", &v1alpha1.ApprovalSpec{Plan: a.planned.Name, Digest: a.planned.Status.Digest}, &v1alpha1.Approval{}); err != nil {
		return err
	}
	apply := &v1alpha1.Apply{}
	if err := a.create(ctx, v1alpha1.ApplyResource, "Apply", &v1alpha1.ApplySpec{Plan: a.planned.Name, Digest: a.planned.Status.Digest}, apply); err != nil {
		return err
	}
	if err := a.wait(ctx, v1alpha1.ApplyResource, apply.Name, apply, func() bool {
		return apply.Status.Phase == v1alpha1.ApplySucceeded || apply.Status.Phase == v1alpha1.ApplyFailed || apply.Status.Phase == v1alpha1.ApplyCanceled
	}); err != nil {
		return err
	}
	for _, problem := range apply.Status.Problems {
		a.out.Failed = append(a.out.Failed, a.address(problem.Address))
		a.out.Messages = append(a.out.Messages, problem.Message)
	}
	if apply.Status.Phase == v1alpha1.ApplyCanceled {
		return errors.New("the apply was cancelled, although no one asked for it")
	}
	return nil
}

// readState reads the states and the world.
func (a *atollSide) readState(ctx context.Context) error {
	list, err := a.API.Resource(v1alpha1.ResourceStateResource).Namespace(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var all []storedInstance
	for i := range list.Items {
		state := &v1alpha1.ResourceState{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, state); err != nil {
			return err
		}
		address := Address{Type: state.Spec.Type, Name: state.Spec.Object.Name}
		if state.Spec.Current != nil {
			s, err := instance(address, state.Spec.Current, false)
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		for d := range state.Spec.Deposed {
			s, err := instance(address, &state.Spec.Deposed[d].ResourceValue, true)
			if err != nil {
				return err
			}
			all = append(all, s)
		}
	}
	a.out.State = a.placeholders.states(all)
	maps.Copy(a.ids, currentIDs(all)) // removed ones may be imported again
	return a.placeholders.readWorld(a.out)
}

func instance(address Address, v *v1alpha1.ResourceValue, deposed bool) (storedInstance, error) {
	s := storedInstance{address: address, deposed: deposed}
	s.SchemaVersion, s.Tainted, s.CreateFirst, s.Private = v.SchemaVersion, v.Tainted, v.CreateBeforeDestroy, string(v.Private)
	attributes, err := decode(v.Value)
	if err != nil {
		return s, err
	}
	s.attributes, _ = attributes.(map[string]any)
	if len(v.Identity) > 0 {
		s.Identity, err = decode(v.Identity)
		if typed, is := s.Identity.(map[string]any); is { // it is stored with its type
			s.Identity = typed["value"]
		}
	}
	return s, err
}

// close deletes the objects that are left in the namespace.
func (a *atollSide) close(ctx context.Context) error {
	for address := range a.existing {
		if err := a.client(address).Delete(ctx, address.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
