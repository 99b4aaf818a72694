package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// dependencies are the relations that one object declares. An object that is needed goes where
// its users go, whichever of the two names the other.
type dependencies struct {
	// needs are objects that go where this one goes.
	needs []object
	// follows are objects that this one goes along with.
	follows []object
	// selects are selectors of pods or properties: this object goes along with what they select.
	selects []selection
	// pods are the labels of the pods that it creates; nil if it creates none.
	pods map[string]string
	// chooses are selectors of objects that go where this one goes, by their properties.
	chooses []selection
	// properties are matched by the selectors of others; nil if none can select it.
	properties map[string]string
	// placed: it is a workload of its namespace. configuration: it may go with the workloads.
	placed, configuration bool
}

// selection is a selector of pods in a namespace, or of the properties of a kind in place of the namespace.
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
	choices   selectorIndex              // by the kind in place of the namespace
	placed    map[string]map[object]bool // by namespace
	config    map[string]map[object]bool // by namespace
}

func newNeeds() *needs {
	return &needs{declared: map[object]dependencies{}, needed: map[object]map[object]int{}, users: map[object]map[object]int{}, selectors: newSelectorIndex(), choices: newSelectorIndex(),
		placed: map[string]map[object]bool{}, config: map[string]map[object]bool{}}
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
	changed = append(changed, n.selectors.setLabels(o, o.Namespace, before.pods, now.pods)...)
	changed = append(changed, n.selectors.setLabels(o, o.GroupKind.String(), before.properties, now.properties)...)
	// Here the selecting object is the user, and the selected one goes along.
	was := n.choices.selected(before.chooses)
	if n.choices.setSelectors(o, before.chooses, now.chooses) {
		is := n.choices.selected(now.chooses)
		for chosen := range was {
			if !is[chosen] {
				changed = append(changed, chosen)
			}
		}
		for chosen := range is {
			if !was[chosen] {
				changed = append(changed, chosen)
			}
		}
	}
	if len(n.choices.setLabels(o, o.GroupKind.String(), before.properties, now.properties)) > 0 {
		changed = append(changed, o)
	}
	member(n.placed, o, now.placed)
	member(n.config, o, now.configuration)
	if len(now.needs)+len(now.follows)+len(now.selects)+len(now.chooses) == 0 && now.pods == nil && now.properties == nil && !now.placed && !now.configuration {
		delete(n.declared, o)
	} else {
		n.declared[o] = now
	}
	return changed
}

// member adds an object to the set of its namespace, or removes it.
func member(of map[string]map[object]bool, o object, is bool) {
	switch {
	case is && of[o.Namespace] == nil:
		of[o.Namespace] = map[object]bool{o: true}
	case is:
		of[o.Namespace][o] = true
	default:
		if delete(of[o.Namespace], o); len(of[o.Namespace]) == 0 {
			delete(of, o.Namespace)
		}
	}
}

// workloadsOf returns the workloads of a namespace, or all with "".
func (n *needs) workloadsOf(namespace string) (all []object) {
	if namespace != "" {
		return n.in(n.placed, namespace)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, in := range n.placed {
		all = slices.AppendSeq(all, maps.Keys(in))
	}
	return all
}

// configurationOf returns the configuration that may go with the workloads of a namespace; with "", the
// cluster-scoped one.
func (n *needs) configurationOf(namespace string) []object { return n.in(n.config, namespace) }

// isWorkload reports whether an object is a workload of its namespace.
func (n *needs) isWorkload(o object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.placed[o.Namespace][o]
}

func (n *needs) in(of map[string]map[object]bool, namespace string) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(of[namespace]))
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

// named returns the objects that a user names. The result must not be modified.
func (n *needs) named(user object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.declared[user].needs
}

// isDeclared reports whether dependencies of an object are recorded.
func (n *needs) isDeclared(o object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, is := n.declared[o]
	return is
}

// neededBy returns the objects that a user needs.
func (n *needs) neededBy(user object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.declared[user]
	return sorted(n.needed[user], n.selectors.selecting(user, user.Namespace, d.pods),
		n.selectors.selecting(user, user.GroupKind.String(), d.properties), n.choices.selected(d.chooses))
}

// usersOf returns the users of an object.
func (n *needs) usersOf(needed object) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.declared[needed]
	return sorted(n.users[needed], n.selectors.selected(d.selects), n.choices.selecting(needed, needed.GroupKind.String(), d.properties))
}

// declares reports whether an object itself says that it goes along with a user, by name or by a selector.
func (n *needs) declares(needed, user object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.declared[needed]
	return slices.Contains(d.follows, user) || n.selectors.selected(d.selects)[user]
}

// neededAcross returns the objects of a namespace that objects of other namespaces name.
func (n *needs) neededAcross(namespace string) (out []object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for needed, users := range n.users {
		if needed.Namespace != namespace {
			continue
		}
		for user := range users {
			if user.Namespace != namespace {
				out = append(out, needed)
				break
			}
		}
	}
	return out
}

func sorted(linked map[object]int, picked ...map[object]bool) []object {
	all := make(map[object]bool, len(linked))
	for o := range linked {
		all[o] = true
	}
	for _, more := range picked {
		maps.Copy(all, more)
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Group, b.Group))
	})
}

// updateNeeds records the current dependencies of an object. If they cannot be read, the previous
// ones stay.
func (s *scheduler) updateNeeds(k interpret.KindInfo, obj *unstructured.Unstructured) (changed []object, err error) {
	o := refOf(k.GroupKind(), obj)
	refs, unanswered := k.Needs(obj)
	if unanswered != nil && !interpret.IsWaiting(unanswered) {
		return nil, unanswered
	}
	if unanswered != nil && s.isUnknown(o, obj) {
		s.unknown.add(o)
	}
	attached, err := k.Follows(obj)
	if err != nil {
		return nil, err
	}
	chosen, err := k.Chooses(obj)
	if err != nil {
		return nil, err
	}
	namespaced := obj.GetNamespace() != "" && !interpret.IsSystemNamespace(obj.GetNamespace())
	now := dependencies{pods: k.PodLabels(obj), properties: k.Properties(obj), placed: k.Placed && namespaced, configuration: k.GoesWithNamespace(obj)}
	for _, c := range chosen {
		now.chooses = append(now.chooses, selection{c.GroupKind.String(), c.Selector})
	}
	for _, ref := range refs {
		now.needs = append(now.needs, objectOfRef(ref))
	}
	s.reportForbidden(obj, o, now.needs)
	if unanswered != nil {
		now.needs = s.needs.named(o) // until the webhook answers
	} else {
		changed = s.unknown.remove(o)
	}
	for _, a := range attached {
		switch {
		case a.Pods != nil:
			now.selects = append(now.selects, selection{a.To.Namespace, a.Pods})
		case a.Properties != nil:
			now.selects = append(now.selects, selection{a.To.GroupKind.String(), a.Properties})
		default:
			now.follows = append(now.follows, objectOfRef(a.To))
		}
	}
	if now.pods == nil && k.MakesPods() {
		now.pods = map[string]string{}
	}
	if !fleet.Native(k.GroupKind()) {
		s.home.set(o, interpret.StatusKeeper(obj))
	}
	changed = append(changed, s.setNeeds(o, now)...)
	return append(changed, s.related.set(o, k, obj)...), unanswered
}

// setNeeds replaces the dependencies of an object, and returns the objects that this may affect.
func (s *scheduler) setNeeds(o object, now dependencies) (changed []object) {
	changed = s.needs.set(o, now)
	return append(changed, s.useChanged(o)...)
}

// withoutNeeds forgets the dependencies of an object that is gone, and returns the objects that went
// along with it. Its binding may be seen to go before the object itself: then these were decided about
// with a user that still existed.
func (s *scheduler) withoutNeeds(o object) (changed []object) {
	s.home.set(o, "")
	released := s.unknown.remove(o)
	changed = append(s.needs.neededBy(o), s.related.delete(o)...)
	return append(append(changed, released...), s.setNeeds(o, dependencies{})...)
}

func objectOfRef(r interpret.Reference) object {
	return object{r.GroupKind, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}}
}
