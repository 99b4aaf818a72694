package scheduler

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
)

// picks knows which objects go along with which workloads because they select their
// pods. Both sides are indexed by one label: a namespace may have thousands of
// each, and comparing all with all at every change would take most of the time.
type picks struct {
	workloads map[label]map[object]map[string]string // the labels of their pods
	followers map[label]map[object][]selection
}

// label is one label in a namespace; without a key it stands for all.
type label struct{ namespace, key, value string }

func newPicks() picks {
	return picks{workloads: map[label]map[object]map[string]string{}, followers: map[label]map[object][]selection{}}
}

// required gives a label that pods must have to be selected, or the one that stands
// for all.
func (s selection) required() label {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case operators.Equals, operators.DoubleEquals, operators.In:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				return label{s.namespace, r.Key(), values[0]}
			}
		}
	}
	return label{namespace: s.namespace}
}

// under gives the entries by which pods with these labels are found.
func under(namespace string, pods map[string]string) []label {
	out := []label{{namespace: namespace}}
	for key, value := range pods {
		out = append(out, label{namespace, key, value})
	}
	return out
}

// chooses says what an object selects now, and whether that is something else.
func (p picks) chooses(o object, before, now []selection) (changed bool) {
	same := len(before) == len(now)
	for i := 0; same && i < len(now); i++ {
		same = before[i].namespace == now[i].namespace && before[i].String() == now[i].String()
	}
	if same {
		return false
	}
	for _, s := range before {
		at := s.required()
		delete(p.followers[at], o)
		if len(p.followers[at]) == 0 {
			delete(p.followers, at)
		}
	}
	for _, s := range now {
		at := s.required()
		if p.followers[at] == nil {
			p.followers[at] = map[object][]selection{}
		}
		p.followers[at][o] = append(p.followers[at][o], s)
	}
	return true
}

// makes says which labels the pods of a workload have now, and gives who follows it
// by that and did not, or no longer does.
func (p picks) makes(o object, before, now map[string]string) (changed []object) {
	if maps.Equal(before, now) && (before == nil) == (now == nil) {
		return nil
	}
	was, is := p.following(o, before), p.following(o, now)
	if before != nil {
		for _, at := range under(o.Namespace, before) {
			delete(p.workloads[at], o)
			if len(p.workloads[at]) == 0 {
				delete(p.workloads, at)
			}
		}
	}
	if now != nil {
		for _, at := range under(o.Namespace, now) {
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

// following gives who selects a workload by the labels of its pods.
func (p picks) following(o object, pods map[string]string) map[object]bool {
	if pods == nil {
		return nil
	}
	out := map[object]bool{}
	for _, at := range under(o.Namespace, pods) {
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

// picked gives the workloads that are selected.
func (p picks) picked(selections []selection) map[object]bool {
	out := map[object]bool{}
	for _, s := range selections {
		for o, pods := range p.workloads[s.required()] {
			if s.Matches(labels.Set(pods)) {
				out[o] = true
			}
		}
	}
	return out
}
