package scheduler

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
)

// selectorIndex knows which objects select which others by labels: Services select workloads by the
// labels of their pods, and roles select types by their group. Both sides are indexed by one label: a
// namespace may have thousands of each, and comparing all pairs at every change would take most of the
// time. What stands for a namespace may be any name of a set of objects.
type selectorIndex struct {
	workloads map[labelKey]map[object]map[string]string // the labels of their pods
	followers map[labelKey]map[object][]selection
}

// labelKey is one label in a namespace; without a key it stands for all pods.
type labelKey struct{ namespace, key, value string }

func newSelectorIndex() selectorIndex {
	return selectorIndex{workloads: map[labelKey]map[object]map[string]string{}, followers: map[labelKey]map[object][]selection{}}
}

// indexKey returns a label that selected pods must have, or the key for all pods.
func (s selection) indexKey() labelKey {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case operators.Equals, operators.DoubleEquals, operators.In:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				return labelKey{s.namespace, r.Key(), values[0]}
			}
		}
	}
	return labelKey{namespace: s.namespace}
}

// labelKeys returns the index keys of pods with these labels.
func labelKeys(namespace string, pods map[string]string) []labelKey {
	out := []labelKey{{namespace: namespace}}
	for key, value := range pods {
		out = append(out, labelKey{namespace, key, value})
	}
	return out
}

// setSelectors replaces the selectors of an object, and reports whether they changed.
func (p selectorIndex) setSelectors(o object, before, now []selection) (changed bool) {
	same := len(before) == len(now)
	for i := 0; same && i < len(now); i++ {
		same = before[i].namespace == now[i].namespace && before[i].String() == now[i].String()
	}
	if same {
		return false
	}
	for _, s := range before {
		at := s.indexKey()
		delete(p.followers[at], o)
		if len(p.followers[at]) == 0 {
			delete(p.followers, at)
		}
	}
	for _, s := range now {
		at := s.indexKey()
		if p.followers[at] == nil {
			p.followers[at] = map[object][]selection{}
		}
		p.followers[at][o] = append(p.followers[at][o], s)
	}
	return true
}

// setLabels replaces the labels of a workload's pods, and returns the objects that start or stop
// selecting it.
func (p selectorIndex) setLabels(o object, namespace string, before, now map[string]string) (changed []object) {
	if maps.Equal(before, now) && (before == nil) == (now == nil) {
		return nil
	}
	was, is := p.selecting(o, namespace, before), p.selecting(o, namespace, now)
	if before != nil {
		for _, at := range labelKeys(namespace, before) {
			delete(p.workloads[at], o)
			if len(p.workloads[at]) == 0 {
				delete(p.workloads, at)
			}
		}
	}
	if now != nil {
		for _, at := range labelKeys(namespace, now) {
			if p.workloads[at] == nil {
				p.workloads[at] = map[object]map[string]string{}
			}
			p.workloads[at][o] = now
		}
	}
	for f := range was {
		if !is[f] {
			changed = append(changed, f)
		}
	}
	for f := range is {
		if !was[f] {
			changed = append(changed, f)
		}
	}
	return changed
}

// selecting returns the objects that select a workload with these labels.
func (p selectorIndex) selecting(o object, namespace string, pods map[string]string) map[object]bool {
	if pods == nil {
		return nil
	}
	out := map[object]bool{}
	for _, at := range labelKeys(namespace, pods) {
		for f, selections := range p.followers[at] {
			for _, s := range selections {
				if f != o && s.Matches(labels.Set(pods)) {
					out[f] = true
				}
			}
		}
	}
	return out
}

// selected returns the workloads that the selectors match.
func (p selectorIndex) selected(selections []selection) map[object]bool {
	out := map[object]bool{}
	for _, s := range selections {
		for o, pods := range p.workloads[s.indexKey()] {
			if s.Matches(labels.Set(pods)) {
				out[o] = true
			}
		}
	}
	return out
}
