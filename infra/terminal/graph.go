package terminal

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/reference"
)

// Graph shows which objects of the namespace refer to which, as text or dot; of targets alone with what they
// need, if there are any.
func (s *Session) Graph(ctx context.Context, targets []string, format string) error {
	language, err := reference.New()
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
	d := &drawing{session: s, known: known, language: language, at: map[string]int32{}}
	d.draw(objects)
	g, err := graph.New(len(d.labels), d.edges)
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
			n, is := d.at[d.key(k, s.Namespace, name)]
			if !is {
				return fmt.Errorf("--target %s: there is no %s/%s in namespace %s: name another namespace with -n", text, k.id(), name, s.Namespace)
			}
			from = append(from, n)
		}
		part = g.WithDependencies(from...)
	}
	label := func(n int32) string { return d.labels[n] }
	for _, cycle := range g.Cycles() {
		s.tell("warning: these refer to each other, so that none can come first: %s", graph.Path(cycle, label))
	}
	if format == "dot" {
		return g.DOT(s.Out, part, label)
	}
	return g.Text(s.Out, part, label)
}

// found are the objects of one kind.
type found struct {
	kind    kind
	objects []unstructured.Unstructured
}

// asked is how many kinds are listed at a time.
const asked = 16

// objects reads all objects of providers' kinds in the namespace, in the order of the kinds.
func (s *Session) objects(ctx context.Context, known kinds) ([]found, error) {
	out, errs := make([]found, len(known)), make([]error, len(known))
	var all sync.WaitGroup
	turns := make(chan struct{}, asked)
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

// drawing is a graph that is being made.
type drawing struct {
	session  *Session
	known    kinds
	language *reference.Language
	labels   []string
	at       map[string]int32
	edges    []graph.Edge
}

func (d *drawing) key(k kind, namespace, name string) string {
	return namespace + " " + k.id() + "/" + name
}

// node gives what is under a key, and makes it if it is not there.
func (d *drawing) node(key, label string) int32 {
	n, is := d.at[key]
	if !is {
		n = int32(len(d.labels))
		d.at[key], d.labels = n, append(d.labels, label)
	}
	return n
}

// label is how a kind's object is called: with its group only if that tells it apart.
func (d *drawing) label(k kind, name string) string {
	for _, other := range d.known {
		if other.name == k.name && other.Group != k.Group {
			return k.id() + "/" + name
		}
	}
	return k.name + "/" + name
}

func (d *drawing) draw(all []found) {
	namespace := d.session.Namespace
	for _, f := range all {
		for i := range f.objects {
			name := f.objects[i].GetName()
			d.node(d.key(f.kind, namespace, name), d.label(f.kind, name))
		}
	}
	for _, f := range all {
		for i := range f.objects {
			o := &f.objects[i]
			from := d.at[d.key(f.kind, namespace, o.GetName())]
			fields, _, _ := unstructured.NestedMap(o.Object, "spec")
			spec, err := d.language.Spec(fields, namespace)
			if err != nil {
				d.session.tell("warning: %s: %v", d.labels[from], err)
				continue
			}
			for _, ref := range spec.References() {
				d.edges = append(d.edges, graph.Edge{From: from, To: d.referred(ref.Ref)})
			}
		}
	}
}

// referred is the node of what is referred to, which may not be there.
func (d *drawing) referred(ref reference.Ref) int32 {
	if ref.Kind == reference.Kubernetes {
		return d.node(ref.String(), "k8s "+ref.Type+"/"+ref.Name)
	}
	kinds := d.known.typed(ref.Type, ref.Kind == reference.Data)
	if len(kinds) != 1 {
		return d.node(ref.String(), ref.String()+" (no Provider serves it)")
	}
	label := d.label(kinds[0], ref.Name)
	if ref.Namespace != d.session.Namespace {
		return d.node(d.key(kinds[0], ref.Namespace, ref.Name), ref.Namespace+": "+label)
	}
	return d.node(d.key(kinds[0], ref.Namespace, ref.Name), label+" (missing)")
}
