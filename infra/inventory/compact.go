package inventory

import (
	"bytes"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
)

const (
	// compactBatch is how many nodes are compacted under one lock.
	compactBatch = 4096
	// slabBytes is large enough for a slab to have memory pages of its own.
	slabBytes = 64 << 10
)

// Compact copies objects and states into contiguous memory.
//
// An apply of a hundred thousand resources leaves its results scattered over all pages that it ever
// used, between its temporary allocations. A page is not released while anything on it is in use.
// After Compact only names and rarely used parts of objects and states remain on such pages. Call
// it rarely: it needs as much memory again until the next garbage collection, and a replaced value
// stays allocated as long as its neighbours are in use.
func (inv *Inventory) Compact() {
	p := &packer{}
	for from := 0; inv.compactFrom(p, from); from += compactBatch {
	}
}

// compactFrom compacts one batch and reports whether there are more.
func (inv *Inventory) compactFrom(p *packer, from int) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if from >= len(inv.nodes) {
		return false
	}
	nodes := inv.nodes[from:min(from+compactBatch, len(inv.nodes))]
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

// packer copies immutable values into slabs.
type packer struct {
	texts   strings.Builder
	bytes   slab[byte]
	uses    slab[int32]
	lists   slab[string]
	objects slab[infra.Object]
	states  slab[infra.State]
	values  slab[v1alpha1.ResourceValue]
	times   slab[metav1.MicroTime]
	carried slab[v1alpha1.CarriedOut]
	steps   slab[v1alpha1.CarriedStep]
}

func (p *packer) object(o *infra.Object) *infra.Object {
	out := p.objects.one(*o)
	out.UID, out.ResourceVersion = p.text(o.UID), p.text(o.ResourceVersion)
	out.Spec = p.bytes.list(o.Spec)
	return out
}

// state shares values with its object where they are equal. Rarely used fields, such as deposed
// resources, are not copied.
func (p *packer) state(s *infra.State, of *infra.Object) *infra.State {
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
			step.Call, step.Action, step.Problem = p.text(step.Call), intern(step.Action), p.text(step.Problem)
		}
		spec.Carried = c
	}
	return out
}

func (p *packer) memo(m *Memo, of *infra.State) {
	m.ProviderConfig, m.KindRevision, m.ConfigRevision = intern(m.ProviderConfig), intern(m.KindRevision), intern(m.ConfigRevision)
	if of != nil && m.StateVersion == of.ResourceVersion {
		m.StateVersion = of.ResourceVersion
	} else {
		m.StateVersion = p.text(m.StateVersion)
	}
	if of != nil && m.Fingerprint == of.Spec.Settled {
		m.Fingerprint = of.Spec.Settled
	} else {
		m.Fingerprint = p.text(m.Fingerprint)
	}
}

// text copies a string into a slab. strings.Builder never changes bytes that it has returned.
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

// slab is a buffer in which the next values are placed contiguously.
type slab[T any] []T

// one copies a value.
func (s *slab[T]) one(v T) *T { return &s.list([]T{v})[0] }

// list copies values. Its capacity is clipped, so that an append does not overwrite neighbours.
func (s *slab[T]) list(values []T) []T {
	if len(values) == 0 {
		return values[:0:0] // nil stays nil, and empty stays empty
	}
	if cap(*s)-len(*s) < len(values) {
		*s = make([]T, 0, max(slabBytes/int(reflect.TypeFor[T]().Size()), len(values)))
	}
	at := len(*s)
	*s = append(*s, values...)
	return (*s)[at:len(*s):len(*s)]
}
