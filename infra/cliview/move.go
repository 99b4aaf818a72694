package cliview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Move is a request to give an object of a provider's kind another name.
type Move struct {
	// From and To are KIND/NAME or addresses. To can be the name alone.
	From, To string
	// Namespace is that of To; empty means that of From.
	Namespace string
	DryRun    bool
}

// moving is a Move whose objects are found.
type moving struct {
	*Move
	fromKind, toKind kind
	fromName, toName string
	from, to         dynamic.ResourceInterface
	old              *unstructured.Unstructured // nil if it is deleted already
}

// MoveState moves the resource of one object to another and shows the plan. If there is no other object,
// it is created with the spec of the old one. The old one is deleted: its finalizer keeps it until the
// plan is applied, and its resource is not touched.
func (s *Session) MoveState(ctx context.Context, move *Move, planName string, opts PlanOptions) (bool, error) {
	m, err := s.findMove(ctx, move)
	if err != nil {
		return false, err
	}
	if err := s.writeTarget(ctx, m); err != nil {
		return false, err
	}
	if err := s.deleteSource(ctx, m); err != nil || m.DryRun {
		return false, err
	}
	if m.Namespace != s.Namespace {
		s.infof("To release the resource, run `atoll apply -n %s`; then, to take it over, `atoll apply -n %s`", s.Namespace, m.Namespace)
		return false, nil
	}
	return s.Plan(ctx, &Request{Name: planName, Targets: []string{m.toKind.id() + "/" + m.toName}}, opts)
}

func (s *Session) findMove(ctx context.Context, move *Move) (*moving, error) {
	known, err := s.kinds()
	if err != nil {
		return nil, err
	}
	language, err := expr.New()
	if err != nil {
		return nil, err
	}
	m := &moving{Move: move}
	if m.Namespace == "" {
		m.Namespace = s.Namespace
	}
	if m.fromKind, m.fromName, err = known.find("source", move.From, s.Namespace, language); err != nil {
		return nil, err
	}
	m.toKind, m.toName = m.fromKind, move.To
	if strings.ContainsAny(move.To, "/[\"") {
		if m.toKind, m.toName, err = known.find("destination", move.To, m.Namespace, language); err != nil {
			return nil, err
		}
	}
	if m.toKind.id() == m.fromKind.id() && m.toName == m.fromName && m.Namespace == s.Namespace {
		return nil, errors.New("source and destination are the same object: name another destination")
	}
	if m.toKind.id() != m.fromKind.id() && (!strings.Contains(move.From, "[") || m.Namespace != s.Namespace && !strings.Contains(move.To, "[")) {
		return nil, fmt.Errorf(`%s is another kind than %s: use addresses with the types of the provider, in quotes: 'demo_network["main"]'`, m.toKind.id(), m.fromKind.id())
	}
	m.from = s.Dynamic.Resource(m.fromKind.GroupVersionResource).Namespace(s.Namespace)
	m.to = s.Dynamic.Resource(m.toKind.GroupVersionResource).Namespace(m.Namespace)
	m.old, err = m.from.Get(ctx, m.fromName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		m.old = nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", m.source(), err)
	}
	return m, nil
}

func (m *moving) source() string { return m.fromKind.id() + "/" + m.fromName }

func (m *moving) target() string { return m.toKind.id() + "/" + m.toName }

// reference is the value of spec.movedFrom.
func (m *moving) reference(namespace string) string {
	switch {
	case m.toKind.id() == m.fromKind.id() && m.Namespace == namespace:
		return m.fromName
	case m.toKind.id() == m.fromKind.id():
		return namespace + "/" + m.fromName
	case m.Namespace == namespace:
		return m.From
	}
	return fmt.Sprintf("namespace[%q].%s", namespace, m.From)
}

func (m *moving) dryRun() []string {
	if m.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// done prints a finished action. A dry run is marked.
func (s *Session) done(m *moving, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if m.DryRun {
		text += " (dry run)"
	}
	s.infof("%s", text)
}

// writeTarget sets spec.movedFrom on the destination, or creates it.
func (s *Session) writeTarget(ctx context.Context, m *moving) error {
	from := m.reference(s.Namespace)
	there, err := m.to.Get(ctx, m.toName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s.createTarget(ctx, m, from)
	case err != nil:
		return fmt.Errorf("read %s: %w", m.target(), err)
	case there.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%s is being deleted: wait until it is gone, or name another destination", m.target())
	}
	if written, _, _ := unstructured.NestedString(there.Object, "spec", "movedFrom"); written == from {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"movedFrom": from}})
	if err != nil {
		return err
	}
	if _, err = m.to.Patch(ctx, m.toName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll", DryRun: m.dryRun()}); err != nil {
		return fmt.Errorf("set spec.movedFrom of %s: %w", m.target(), err)
	}
	s.done(m, "%s patched with spec.movedFrom: %s", m.target(), from)
	return nil
}

// createTarget creates the destination with the spec of the source.
func (s *Session) createTarget(ctx context.Context, m *moving, from string) error {
	switch {
	case m.old == nil:
		return fmt.Errorf("neither %s nor %s exists: apply a manifest of %s with spec.movedFrom: %s, then plan", m.source(), m.target(), m.target(), from)
	case m.toKind.id() != m.fromKind.id():
		return fmt.Errorf("%s not found: apply a manifest of it, because its spec differs from that of %s; then repeat the command", m.target(), m.source())
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(m.old.GroupVersionKind())
	u.SetName(m.toName)
	u.SetNamespace(m.Namespace)
	u.SetLabels(m.old.GetLabels())
	annotations := m.old.GetAnnotations()
	for _, name := range []string{"kubectl.kubernetes.io/last-applied-configuration", infra.ImportAnnotation, infra.DeletionAnnotation, infra.MovedToAnnotation} {
		delete(annotations, name)
	}
	u.SetAnnotations(annotations)
	spec, _, err := unstructured.NestedMap(m.old.Object, "spec")
	if err != nil {
		return err
	}
	if spec == nil {
		spec = map[string]any{}
	}
	spec["movedFrom"] = from
	u.Object["spec"] = spec
	if _, err := m.to.Create(ctx, u, metav1.CreateOptions{FieldManager: "atoll", DryRun: m.dryRun()}); err != nil {
		return fmt.Errorf("create %s: %w", m.target(), err)
	}
	s.done(m, "%s created with the spec of %s", m.target(), m.source())
	return nil
}

// deleteSource deletes the source. For another namespace it first permits that namespace to take its
// resource over.
func (s *Session) deleteSource(ctx context.Context, m *moving) error {
	if m.old == nil {
		return nil
	}
	if m.Namespace != s.Namespace {
		to := m.Namespace + "/" + m.toName
		if m.toKind.id() != m.fromKind.id() {
			to = m.Namespace + "/" + m.To[:strings.Index(m.To, "[")] + "/" + m.toName
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{infra.MovedToAnnotation: to}}})
		if err != nil {
			return err
		}
		if _, err := m.from.Patch(ctx, m.fromName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll", DryRun: m.dryRun()}); err != nil {
			return fmt.Errorf("annotate %s with %s: %w", m.source(), infra.MovedToAnnotation, err)
		}
		s.done(m, "%s annotated with %s=%s", m.source(), infra.MovedToAnnotation, to)
	}
	if m.old.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := m.old.GetUID()
	err := m.from.Delete(ctx, m.fromName, metav1.DeleteOptions{DryRun: m.dryRun(), Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", m.source(), err)
	}
	s.done(m, "%s deleted; its resource stays and moves when the plan is applied", m.source())
	return nil
}
