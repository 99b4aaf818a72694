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

// dependencies are the relations that one object declares. An object that is needed goes where
// its users go, whichever of the two names the other.
type dependencies struct {
	// needs are objects that go where this one goes.
	needs []object
	// follows are objects that this one goes along with.
	follows []object
	// selects are selectors of pods: this object goes along with their workloads.
	selects []selection
	// pods are the labels of the pods that it creates; nil if it creates none.
	pods map[string]string
}

// selection is a selector of pods in a namespace.
type selection struct {
	namespace string
	labels.Selector
}

// needs is the graph of dependencies, indexed in both directions. It is derived from the caches
// and therefore filled before the first decision of a session.
type needs struct {
	mu        sync.Mutex
	declared  map[object]dependencies
	needed    map[object]map[object]int // user -> needed object -> number of declarations
	users     map[object]map[object]int // needed object -> user -> number of declarations
	selectors selectorIndex
}

func newNeeds() *needs {
	return &needs{declared: map[object]dependencies{}, needed: map[object]map[object]int{}, users: map[object]map[object]int{}, selectors: newSelectorIndex()}
}

// set replaces the dependencies of an object. It returns the objects whose users may have
// changed. It also returns the users that are named: an object that follows them can affect
// them, as an autoscaler does.
func (n *needs) set(o object, now dependencies) (changed []object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.declared[o]
	for _, needed := range difference(before.needs, now.needs) {
		n.unlink(o, needed)
		changed = append(changed, needed)
	}
	for _, needed := range difference(now.needs, before.needs) {
		n.link(o, needed)
		changed = append(changed, needed)
	}
	self := false
	for _, user := range difference(before.follows, now.follows) {
		n.unlink(user, o)
		changed, self = append(changed, user), true
	}
	for _, user := range difference(now.follows, before.follows) {
		n.link(user, o)
		changed, self = append(changed, user), true
	}
	if n.selectors.setSelectors(o, before.selects, now.selects) || self {
		changed = append(changed, o)
	}
	changed = append(changed, n.selectors.setPodLabels(o, before.pods, now.pods)...)
	if len(now.needs)+len(now.follows)+len(now.selects) == 0 && now.pods == nil {
		delete(n.declared, o)
	} else {
		n.declared[o] = now
	}
	return changed
}

// difference returns the elements of a that are not in b, without duplicates.
func difference(a, b []object) []object {
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

// neededBy returns the objects that a user needs.
func (n *needs) neededBy(user object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sorted(n.needed[user], n.selectors.followersOf(user, n.declared[user].pods))
}

// usersOf returns the users of an object.
func (n *needs) usersOf(needed object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sorted(n.users[needed], n.selectors.selected(n.declared[needed].selects))
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

// updateNeeds records the current dependencies of an object. If they cannot be read, the previous
// ones stay.
func (s *scheduler) updateNeeds(k interpret.KindInfo, obj *unstructured.Unstructured) (changed []object, err error) {
	refs, err := k.Needs(obj)
	if err != nil {
		return nil, err
	}
	attached, err := k.Follows(obj)
	if err != nil {
		return nil, err
	}
	now := dependencies{pods: k.PodLabels(obj)}
	for _, ref := range refs {
		now.needs = append(now.needs, objectOfRef(ref))
	}
	for _, a := range attached {
		if a.Pods != nil {
			now.selects = append(now.selects, selection{a.To.Namespace, a.Pods})
		} else {
			now.follows = append(now.follows, objectOfRef(a.To))
		}
	}
	if now.pods == nil && k.MakesPods() {
		now.pods = map[string]string{}
	}
	return s.needs.set(refOf(k.GroupKind(), obj), now), nil
}

func objectOfRef(r interpret.Reference) object {
	return object{r.GroupKind, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}}
}
