package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// statement is what one object says about who goes along with whom: an object that
// is needed goes where its users are, whichever of the two names the other.
type statement struct {
	// needs: these go along with it.
	needs []object
	// follows: it goes along with these.
	follows []object
	// selects: it goes along with the workloads whose pods these select.
	selects []selection
	// pods are the labels of the pods that it makes; nil if it makes none.
	pods map[string]string
}

// selection is a selector of pods in a namespace.
type selection struct {
	namespace string
	labels.Selector
}

// needs remembers who needs what, both ways. It is derived from the caches and
// therefore filled before the first decision of a term.
type needs struct {
	mu     sync.Mutex
	said   map[object]statement
	needed map[object]map[object]int // user -> what it needs, and how many say so
	users  map[object]map[object]int // what is needed -> by whom
	picks  picks
}

func newNeeds() *needs {
	return &needs{said: map[object]statement{}, needed: map[object]map[object]int{}, users: map[object]map[object]int{}, picks: newPicks()}
}

// set says what an object states now, and gives the objects that may have other
// users by that, or are named as such: what goes along with them can matter to them, as an autoscaler does.
func (n *needs) set(o object, now statement) (changed []object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.said[o]
	for _, needed := range gone(before.needs, now.needs) {
		n.unlink(o, needed)
		changed = append(changed, needed)
	}
	for _, needed := range gone(now.needs, before.needs) {
		n.link(o, needed)
		changed = append(changed, needed)
	}
	self := false
	for _, user := range gone(before.follows, now.follows) {
		n.unlink(user, o)
		changed, self = append(changed, user), true
	}
	for _, user := range gone(now.follows, before.follows) {
		n.link(user, o)
		changed, self = append(changed, user), true
	}
	if n.picks.chooses(o, before.selects, now.selects) || self {
		changed = append(changed, o)
	}
	changed = append(changed, n.picks.makes(o, before.pods, now.pods)...)
	if len(now.needs)+len(now.follows)+len(now.selects) == 0 && now.pods == nil {
		delete(n.said, o)
	} else {
		n.said[o] = now
	}
	return changed
}

// gone gives what is in a and not in b, each once.
func gone(a, b []object) []object {
	var out []object
	for _, o := range a {
		if !slices.Contains(b, o) && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	return out
}

func (n *needs) link(user, needed object) {
	for _, end := range []struct {
		of       map[object]map[object]int
		from, to object
	}{{n.needed, user, needed}, {n.users, needed, user}} {
		if end.of[end.from] == nil {
			end.of[end.from] = map[object]int{}
		}
		end.of[end.from][end.to]++
	}
}

func (n *needs) unlink(user, needed object) {
	for _, end := range []struct {
		of       map[object]map[object]int
		from, to object
	}{{n.needed, user, needed}, {n.users, needed, user}} {
		if end.of[end.from][end.to]--; end.of[end.from][end.to] <= 0 {
			delete(end.of[end.from], end.to)
		}
		if len(end.of[end.from]) == 0 {
			delete(end.of, end.from)
		}
	}
}

// of gives what a user needs.
func (n *needs) of(user object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sorted(n.needed[user], n.picks.following(user, n.said[user].pods))
}

// by gives who needs an object.
func (n *needs) by(needed object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sorted(n.users[needed], n.picks.picked(n.said[needed].selects))
}

func sorted(linked map[object]int, picked map[object]bool) []object {
	all := make(map[object]bool, len(linked)+len(picked))
	for o := range linked {
		all[o] = true
	}
	maps.Copy(all, picked)
	return slices.SortedFunc(maps.Keys(all), func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Group, b.Group))
	})
}

// learn brings what an object states up to date. Of an object that cannot be read,
// what is known already stays.
func (s *scheduler) learn(k interpret.Kind, obj *unstructured.Unstructured) (changed []object, err error) {
	refs, err := k.Needs(obj)
	if err != nil {
		return nil, err
	}
	attached, err := k.Follows(obj)
	if err != nil {
		return nil, err
	}
	now := statement{pods: k.PodLabels(obj)}
	for _, ref := range refs {
		now.needs = append(now.needs, named(ref))
	}
	for _, a := range attached {
		if a.Pods != nil {
			now.selects = append(now.selects, selection{a.To.Namespace, a.Pods})
		} else {
			now.follows = append(now.follows, named(a.To))
		}
	}
	if now.pods == nil && k.MakesPods() {
		now.pods = map[string]string{}
	}
	return s.needs.set(refOf(k.GroupKind(), obj), now), nil
}

func named(r interpret.Reference) object {
	return object{r.GroupKind, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}}
}
