package infra

import (
	"bytes"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// compactAtOnce is how many nodes nobody else can look at meanwhile.
	compactAtOnce = 4096
	// slabBytes is so much that a slab has pages of its own.
	slabBytes = 64 << 10
)

// Compact writes anew, side by side, what is kept of objects and states.
//
// What an apply of a hundred thousand leaves lies scattered over all the pages that it ever used, between what it
// needed for a moment, and as long as anything of a page stays, the page cannot be given back. Of objects and
// states only what few have is in such pages after this, and their names. It is for rare occasions: until the next garbage collection it takes as much
// memory again, and what is replaced later is kept until nothing beside it is in use.
func (w *World) Compact() {
	p := &packer{}
	for from := 0; w.compact(p, from); from += compactAtOnce {
	}
}

// compact does some, and tells whether there are more.
func (w *World) compact(p *packer, from int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if from >= len(w.nodes) {
		return false
	}
	nodes := w.nodes[from:min(from+compactAtOnce, len(w.nodes))]
	for i := range nodes {
		n := &nodes[i]
		if n.object != nil {
			n.object = p.object(n.object)
		}
		if n.state != nil {
			n.state = p.state(n.state, n.object)
		}
		n.uses = p.uses.list(n.uses)
		p.memo(&n.memo, n.state)
	}
	return true
}

// packer copies what nobody changes into slabs.
type packer struct {
	texts   strings.Builder
	bytes   slab[byte]
	uses    slab[int32]
	lists   slab[string]
	objects slab[Object]
	states  slab[State]
	values  slab[v1alpha1.ResourceValue]
	times   slab[metav1.MicroTime]
	carried slab[v1alpha1.CarriedOut]
	steps   slab[v1alpha1.CarriedStep]
}

func (p *packer) object(o *Object) *Object {
	out := p.objects.one(*o)
	out.UID, out.ResourceVersion = p.text(o.UID), p.text(o.ResourceVersion)
	out.Spec = p.bytes.list(o.Spec)
	return out
}

// state has what it shares with its object from there. Of what few have, such as what is deposed, it keeps what there is.
func (p *packer) state(s *State, of *Object) *State {
	out := p.states.one(*s)
	out.UID, out.ResourceVersion = p.text(s.UID), p.text(s.ResourceVersion)
	spec := &out.Spec
	spec.Settled = p.text(spec.Settled)
	if of != nil && bytes.Equal(of.Spec, spec.Written) {
		spec.Written = of.Spec
	} else {
		spec.Written = p.bytes.list(spec.Written)
	}
	if of != nil && of.UID == spec.Object.UID {
		spec.Object.UID = of.UID
	} else {
		spec.Object.UID = p.text(spec.Object.UID)
	}
	if spec.Current != nil {
		v := p.values.one(*spec.Current)
		v.Value, v.Private, v.Identity = p.bytes.list(v.Value), p.bytes.list(v.Private), p.bytes.list(v.Identity)
		v.Sensitive, v.Dependencies = p.textsOf(v.Sensitive), p.textsOf(v.Dependencies)
		spec.Current = v
	}
	if spec.Refreshed != nil {
		spec.Refreshed = p.times.one(*spec.Refreshed)
	}
	if spec.Carried != nil {
		c := p.carried.one(*spec.Carried)
		c.Steps = p.steps.list(c.Steps)
		for i := range c.Steps {
			step := &c.Steps[i]
			step.Call, step.Action, step.Problem = p.text(step.Call), shared(step.Action), p.text(step.Problem)
		}
		spec.Carried = c
	}
	return out
}

func (p *packer) memo(m *memo, of *State) {
	m.config, m.served, m.opened = shared(m.config), shared(m.served), shared(m.opened)
	if of != nil && m.state == of.ResourceVersion {
		m.state = of.ResourceVersion
	} else {
		m.state = p.text(m.state)
	}
	if of != nil && m.fingerprint == of.Spec.Settled {
		m.fingerprint = of.Spec.Settled
	} else {
		m.fingerprint = p.text(m.fingerprint)
	}
}

// text in a slab. What strings.Builder has given out, it does not change.
func (p *packer) text(s string) string {
	if p.texts.Cap()-p.texts.Len() < len(s) {
		p.texts = strings.Builder{}
		p.texts.Grow(max(slabBytes, len(s)))
	}
	at := p.texts.Len()
	p.texts.WriteString(s)
	return p.texts.String()[at:]
}

func (p *packer) textsOf(list []string) []string {
	list = p.lists.list(list)
	for i, s := range list {
		list[i] = p.text(s)
	}
	return list
}

// slab is where the next values go, which stay side by side.
type slab[T any] []T

// one copies a value.
func (s *slab[T]) one(v T) *T { return &s.list([]T{v})[0] }

// list copies values. Whoever appends to the copy does not get at what lies beside it.
func (s *slab[T]) list(values []T) []T {
	if len(values) == 0 {
		return values[:0:0] // nil stays nil, and empty empty
	}
	if cap(*s)-len(*s) < len(values) {
		*s = make([]T, 0, max(slabBytes/int(reflect.TypeFor[T]().Size()), len(values)))
	}
	at := len(*s)
	*s = append(*s, values...)
	return (*s)[at:len(*s):len(*s)]
}
