// Package placing keeps copies of the objects of a child workspace in its parent, which places them in its clusters, and writes the
// statuses of the copies back. Package mapping decides; this one reads both APIs and acts.
package placing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/tenancy/mapping"
)

// FieldManager owns the fields of the copies and of their namespaces.
const FieldManager = "atoll-workspaces"

const (
	// kindsInterval is how often a Placer looks for new kinds, and for changes of the role that permits them.
	kindsInterval = 5 * time.Second
	// completeInterval is how often it reads copies of all kinds. Otherwise it reads those of the kinds that the child has objects of.
	completeInterval = 30 * time.Second
	// page is how many objects one request reads.
	page = 500
	// maxObjects bounds the objects of a child that a pass holds in memory, and maxBytes their approximate size.
	maxObjects, maxBytes = 20_000, 64 << 20
)

// ErrTooLarge is returned for a child with more objects than a pass may hold.
var ErrTooLarge = fmt.Errorf("the workspace has more than %d objects, or %d MiB, of the kinds that the workspace above places: delete some, or divide them among workspaces", maxObjects, maxBytes>>20)

var (
	namespaces   = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	clusterRoles = rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	roleBindings = rbacv1.SchemeGroupVersion.WithResource("rolebindings")
)

// Config configures a Placer.
type Config struct {
	Child mapping.Child
	// Source is a client of the child, and SourceKinds its discovery.
	Source      dynamic.Interface
	SourceKinds discovery.ServerResourcesInterface
	// Parent is a client of the parent with all permissions. It manages the namespaces of the child and reads.
	Parent      dynamic.Interface
	ParentKinds discovery.ServerResourcesInterface
	// Copies is a client of the parent as the user of the child (mapping.Child.User), with the permissions of the PlacementRole in the child's namespaces.
	// It writes the copies, so the parent's policies see that user, and its RBAC decides.
	Copies dynamic.Interface
	Clock  clock.PassiveClock
	Log    *slog.Logger
}

// Placer places the objects of one child. It is not safe for concurrent use.
type Placer struct {
	Config
	kinds      []interpret.KindInfo
	discovered time.Time
	completed  time.Time
	// used are the kinds that have objects or copies, as far as is known.
	used map[schema.GroupKind]bool
	// written are digests of the statuses that were written, by the UIDs of their objects. An API may store a status otherwise than it was written.
	written map[string]string
	told    told
}

// New returns a Placer.
func New(cfg Config) *Placer {
	return &Placer{Config: cfg, used: map[schema.GroupKind]bool{}, written: map[string]string{}, told: told{}}
}

// Result is the outcome of a pass.
type Result struct {
	// Objects is how many copies the parent had before the pass, and Changes how many changes were made.
	Objects, Changes int
	// Problems are the objects that could not be placed.
	Problems []Problem
}

// Problem is an object of the child that could not be placed.
type Problem struct {
	// Object is its kind and name.
	Object string
	// Message is the reason.
	Message string
}

func (p Problem) String() string { return p.Object + ": " + p.Message }

// Pass makes both APIs agree once. An error means that they could not be read.
// Errors: ErrTooLarge.
func (p *Placer) Pass(ctx context.Context) (out Result, err error) {
	if err := p.discover(ctx); err != nil {
		return out, err
	}
	state, err := p.read(ctx)
	if err != nil {
		return out, err
	}
	actions, err := mapping.Plan(state)
	if err != nil {
		return out, err
	}
	for _, copies := range state.Copies {
		out.Objects += len(copies)
	}
	for _, action := range actions {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		p.act(ctx, action, &out)
	}
	p.tell(ctx, actions, out)
	return out, nil
}

// discover finds the kinds to place.
func (p *Placer) discover(ctx context.Context) error {
	if p.kinds != nil && p.Clock.Since(p.discovered) < kindsInterval {
		return nil
	}
	child, err := p.SourceKinds.ServerPreferredResources()
	if err != nil {
		return fmt.Errorf("read the kinds of the workspace: %w", err)
	}
	parent, err := p.ParentKinds.ServerPreferredResources()
	if err != nil {
		return fmt.Errorf("read the kinds of the workspace above: %w", err)
	}
	role := &rbacv1.ClusterRole{}
	stored, err := p.Parent.Resource(clusterRoles).Get(ctx, v1alpha1.PlacementRole, metav1.GetOptions{})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, role)
	}
	if err != nil {
		return fmt.Errorf("read the ClusterRole %s of the workspace above: %w", v1alpha1.PlacementRole, err)
	}
	p.kinds, p.discovered = mapping.Kinds(role.Rules, child, parent), p.Clock.Now()
	return nil
}

// read reads both APIs. It reads the copies first, so each copy of an object that is not found then is one of a deleted object.
func (p *Placer) read(ctx context.Context) (s mapping.State, err error) {
	s = mapping.State{Child: p.Child, Kinds: p.kinds, Namespaces: map[string]*unstructured.Unstructured{}, ParentNamespaces: map[string]*unstructured.Unstructured{},
		Sources: map[schema.GroupKind][]*unstructured.Unstructured{}, Copies: map[schema.GroupKind][]*unstructured.Unstructured{}}
	owned, err := list(ctx, p.Parent.Resource(namespaces), v1alpha1.ChildUIDLabel+"="+string(p.Child.UID))
	if err != nil {
		return s, fmt.Errorf("read the namespaces of the workspace above: %w", err)
	}
	for _, ns := range owned {
		s.ParentNamespaces[ns.GetName()] = ns
	}
	all := p.Clock.Since(p.completed) >= completeInterval
	for _, k := range p.kinds {
		if !all && !p.used[k.GroupKind()] {
			continue
		}
		if err := p.readCopies(ctx, k, s); err != nil {
			return s, err
		}
	}
	if err := p.readSources(ctx, s); err != nil {
		return s, err
	}
	if all {
		p.completed = p.Clock.Now()
	}
	return s, p.readTaken(ctx, s)
}

// readCopies reads the copies of one kind.
func (p *Placer) readCopies(ctx context.Context, k interpret.KindInfo, s mapping.State) error {
	s.Copies[k.GroupKind()] = []*unstructured.Unstructured{}
	for name := range s.ParentNamespaces {
		copies, err := list(ctx, p.Parent.Resource(k.GVR()).Namespace(name), v1alpha1.ChildUIDLabel+"="+string(p.Child.UID))
		if err != nil {
			return fmt.Errorf("read the %s of namespace %s of the workspace above: %w", k.Resource, name, err)
		}
		s.Copies[k.GroupKind()] = append(s.Copies[k.GroupKind()], copies...)
	}
	return nil
}

// readSources reads the objects and namespaces of the child.
func (p *Placer) readSources(ctx context.Context, s mapping.State) error {
	objects, bytes := 0, 0
	for _, k := range p.kinds {
		sources, err := list(ctx, p.Source.Resource(k.GVR()), "", func(object *unstructured.Unstructured) error {
			objects++
			bytes += size(object.Object)
			if objects > maxObjects || bytes > maxBytes {
				return ErrTooLarge
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the %s of the workspace: %w", k.Resource, err)
		}
		s.Sources[k.GroupKind()] = sources
		if _, read := s.Copies[k.GroupKind()]; len(sources) > 0 && !read {
			if err := p.readCopies(ctx, k, s); err != nil { // each deletion of a copy is confirmed, so they may be newer
				return err
			}
		}
		p.used[k.GroupKind()] = len(sources) > 0 || len(s.Copies[k.GroupKind()]) > 0
	}
	existing, err := list(ctx, p.Source.Resource(namespaces), "")
	if err != nil {
		return fmt.Errorf("read the namespaces of the workspace: %w", err)
	}
	for _, ns := range existing {
		s.Namespaces[ns.GetName()] = ns
	}
	return nil
}

// readTaken reads the namespaces of the parent that have a name which the child needs, and that it may not own.
func (p *Placer) readTaken(ctx context.Context, s mapping.State) error {
	for source := range s.UsedNamespaces() {
		name := p.Child.Namespace(source)
		if s.ParentNamespaces[name] != nil {
			continue
		}
		found, err := p.Parent.Resource(namespaces).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read namespace %s of the workspace above: %w", name, err)
		}
		s.ParentNamespaces[name] = found
	}
	return nil
}

// size returns about how many bytes a value of JSON takes.
func size(value any) (n int) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			n += len(key) + size(inner)
		}
	case []any:
		for _, inner := range v {
			n += size(inner)
		}
	case string:
		n = len(v)
	}
	return n + 16
}

// list reads all objects of a resource with the labels. It ends with the error of a check of one of them.
func list(ctx context.Context, api dynamic.ResourceInterface, labels string, checks ...func(*unstructured.Unstructured) error) (all []*unstructured.Unstructured, err error) {
	for options := (metav1.ListOptions{Limit: page, LabelSelector: labels}); ; {
		found, err := api.List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range found.Items {
			for _, check := range checks {
				if err := check(&found.Items[i]); err != nil {
					return nil, err
				}
			}
			all = append(all, &found.Items[i])
		}
		if options.Continue = found.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
