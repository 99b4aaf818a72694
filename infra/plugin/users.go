package plugin

import (
	"fmt"
	"strings"
	"sync"

	"github.com/atoll-dev/atoll/infra/containment"
)

// UserPool gives each contained provider of several Hosts a user of its own.
type UserPool struct {
	users containment.Users

	mu    sync.Mutex
	taken map[poolKey]User
}

// poolKey is a provider of a scope: the Config.UserScope of its Host.
type poolKey struct{ scope, provider string }

// NewUserPool returns a pool of a range of users.
func NewUserPool(users containment.Users) *UserPool {
	return &UserPool{users: users, taken: map[poolKey]User{}}
}

// pick returns the user of a provider. It is the same one until the scope is released, and usually after a restart. Two providers of the scope ""
// share one if there are not enough users. Providers of other scopes never do: their authors may not trust each other.
func (p *UserPool) pick(scope, provider string) (User, error) {
	key := poolKey{scope, provider}
	p.mu.Lock()
	defer p.mu.Unlock()
	if u, ok := p.taken[key]; ok {
		return u, nil
	}
	taken := map[uint32]bool{}
	for _, other := range p.taken {
		taken[other.UID] = true
	}
	if scope != "" && len(taken) >= int(p.users.Count) {
		return User{}, fmt.Errorf("%w: each of the %d users that this server has for providers is taken: delete a Provider", ErrNotContained, p.users.Count)
	}
	picked := p.users.Pick(strings.TrimPrefix(scope+"/"+provider, "/"), taken)
	u := User{UID: picked.UID, GID: picked.GID}
	p.taken[key] = u
	return u, nil
}

// release gives up the users of a scope. None of its processes may be left, except for contained ones whose calls keepers finish.
func (p *UserPool) release(scope string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.taken {
		if key.scope == scope {
			delete(p.taken, key)
		}
	}
}
