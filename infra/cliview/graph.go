package cliview

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
)

// Graph prints the references between objects of the namespace, as text or dot. With targets, it prints only
// those and their dependencies.
func (s *Session) Graph(ctx context.Context, targets []string, format string) error {
	language, err := expr.New()
	if err != nil {
		return err
	}
	known, err := s.kinds()
	if err != nil {
		return err
	}
	objects, err := s.objects(ctx, known)
	if err != nil {
		return err
	}
	b := &builder{session: s, known: known, language: language, at: map[string]int32{}}
	b.build(objects)
	g, err := graph.New(len(b.labels), b.edges)
	if err != nil {
		return err
	}
	var part *graph.Set
	if len(targets) > 0 {
		var from []int32
		for _, text := range targets {
			k, name, err := known.find("--target", text, s.Namespace, language)
			if err != nil {
				return err
			}
			n, is := b.at[b.key(k, s.Namespace, name)]
			if !is {
				return fmt.Errorf("--target %s: %s/%s not found in namespace %s: choose another namespace with -n", text, k.id(), name, s.Namespace)
			}
			from = append(from, n)
		}
		part = g.WithDependencies(from...)
	}
	label := func(n int32) string { return b.labels[n] }
	for _, cycle := range g.Cycles() {
		s.infof("warning: dependency cycle: %s", graph.Path(cycle, label))
	}
	if format == "dot" {
		return g.DOT(s.Out, part, label)
	}
	return g.Text(s.Out, part, label)
}

// objectsOfKind are the objects of one kind.
type objectsOfKind struct {
	kind    kind
	objects []unstructured.Unstructured
}

// listConcurrency is how many kinds are listed concurrently.
const listConcurrency = 16

// objects lists all objects of providers' kinds in the namespace, in the order of the kinds.
func (s *Session) objects(ctx context.Context, known kinds) ([]objectsOfKind, error) {
	out, errs := make([]objectsOfKind, len(known)), make([]error, len(known))
	var all sync.WaitGroup
	turns := make(chan struct{}, listConcurrency)
	for i, k := range known {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			out[i].kind = k
			out[i].objects, errs[i] = s.ofKind(ctx, k)
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", known[i].id(), err)
		}
	}
	return out, nil
}

func (s *Session) ofKind(ctx context.Context, k kind) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.Dynamic.Resource(k.GroupVersionResource).Namespace(s.Namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return out, nil
		}
	}
}

// builder builds the graph.
type builder struct {
	session  *Session
	known    kinds
	language *expr.Language
	labels   []string
	at       map[string]int32
	edges    []graph.Edge
}

func (b *builder) key(k kind, namespace, name string) string {
	return namespace + " " + k.id() + "/" + name
}

// node returns the node of a key, and adds it if it does not exist.
func (b *builder) node(key, label string) int32 {
	n, is := b.at[key]
	if !is {
		n = int32(len(b.labels))
		b.at[key], b.labels = n, append(b.labels, label)
	}
	return n
}

// label returns an object's label. It includes the group only if the kind is ambiguous.
func (b *builder) label(k kind, name string) string {
	for _, other := range b.known {
		if other.name == k.name && other.Group != k.Group {
			return k.id() + "/" + name
		}
	}
	return k.name + "/" + name
}

func (b *builder) build(all []objectsOfKind) {
	namespace := b.session.Namespace
	for _, f := range all {
		for i := range f.objects {
			name := f.objects[i].GetName()
			b.node(b.key(f.kind, namespace, name), b.label(f.kind, name))
		}
	}
	for _, f := range all {
		for i := range f.objects {
			o := &f.objects[i]
			from := b.at[b.key(f.kind, namespace, o.GetName())]
			fields, _, _ := unstructured.NestedMap(o.Object, "spec")
			spec, err := b.language.Spec(fields, namespace)
			if err != nil {
				b.session.infof("warning: %s: %v", b.labels[from], err)
				continue
			}
			for _, ref := range spec.References() {
				b.edges = append(b.edges, graph.Edge{From: from, To: b.target(ref.Ref)})
			}
		}
	}
}

// target returns the node of a reference, whose object may not exist.
func (b *builder) target(ref expr.Ref) int32 {
	if ref.Kind == expr.Kubernetes {
		return b.node(ref.String(), "k8s "+ref.Type+"/"+ref.Name)
	}
	kinds := b.known.typed(ref.Type, ref.Kind == expr.Data)
	if len(kinds) != 1 {
		return b.node(ref.String(), ref.String()+" (no Provider serves it)")
	}
	label := b.label(kinds[0], ref.Name)
	if ref.Namespace != b.session.Namespace {
		return b.node(b.key(kinds[0], ref.Namespace, ref.Name), ref.Namespace+": "+label)
	}
	return b.node(b.key(kinds[0], ref.Namespace, ref.Name), label+" (missing)")
}
