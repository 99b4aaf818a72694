package scheduler

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// needs remembers who needs what, both ways. It is derived from the caches and
// therefore filled before the first decision of a term.
type needs struct {
	mu     sync.Mutex
	needed map[object]map[object]bool // user -> what it needs
	users  map[object]map[object]bool // what is needed -> by whom
}

func newNeeds() *needs {
	return &needs{needed: map[object]map[object]bool{}, users: map[object]map[object]bool{}}
}

// set says what a user needs now, and gives what that changes.
func (n *needs) set(user object, now []object) (changed []object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.needed[user]
	after := make(map[object]bool, len(now))
	for _, o := range now {
		if after[o] {
			continue
		}
		after[o] = true
		if !before[o] {
			changed = append(changed, o)
			if n.users[o] == nil {
				n.users[o] = map[object]bool{}
			}
			n.users[o][user] = true
		}
	}
	for o := range before {
		if !after[o] {
			changed = append(changed, o)
			delete(n.users[o], user)
			if len(n.users[o]) == 0 {
				delete(n.users, o)
			}
		}
	}
	if len(after) == 0 {
		delete(n.needed, user)
	} else {
		n.needed[user] = after
	}
	return changed
}

// of gives what a user needs.
func (n *needs) of(user object) []object {
	return n.sorted(func() map[object]bool { return n.needed[user] })
}

// by gives who needs an object.
func (n *needs) by(needed object) []object {
	return n.sorted(func() map[object]bool { return n.users[needed] })
}

func (n *needs) sorted(get func() map[object]bool) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(get()), func(a, b object) int {
		return strings.Compare(a.Kind+"/"+a.Name, b.Kind+"/"+b.Name)
	})
}

// learn brings what an object needs up to date. Of an object whose needs cannot
// be read, what is known already stays.
func (s *scheduler) learn(k interpret.Kind, obj *unstructured.Unstructured) (changed []object, err error) {
	refs, err := k.Needs(obj)
	if err != nil {
		return nil, err
	}
	user := refOf(k.GroupKind(), obj)
	now := make([]object, 0, len(refs))
	for _, ref := range refs {
		now = append(now, object{ref.GroupKind, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}})
	}
	if labels := k.PodLabels(obj); len(labels) > 0 {
		service := schema.GroupKind{Kind: "Service"}
		for svc := range s.Objects(service, user.Namespace) {
			if interpret.Selects(svc, labels) {
				now = append(now, refOf(service, svc))
			}
		}
	}
	return s.needs.set(user, now), nil
}
