package expose

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// eager is how long a member that is not known to list a version is asked often.
const eager = 10 * time.Second

// A member answers for a version before it lists its kinds in the document that
// kubectl and RESTMappers read: its aggregator writes that a moment later. So that
// whoever waits for Ready can use the kinds then, it is asked once for each version.

// listing remembers which APIServices, by UID, the member was seen to list.
type listing struct {
	seen  map[types.UID]bool
	since time.Time // when the first that it did not list was missed; zero if none
}

// look asks the member, if there is a version that it answers for and was not seen
// to list, and gives the pause after which to ask again if it still does not.
func (m *member) look(ctx context.Context, now time.Time) (again time.Duration, err error) {
	missing := map[schema.GroupVersion]types.UID{}
	uids := map[types.UID]bool{}
	for _, a := range m.ours() {
		if a.GetKind() != apiServiceKind {
			continue
		}
		uids[a.GetUID()] = m.lists.seen[a.GetUID()]
		if answers, _ := m.answers(a.GetName()); answers && !m.lists.seen[a.GetUID()] {
			missing[versionOf(a)] = a.GetUID()
		}
	}
	if len(missing) > 0 {
		listed, err := m.way.listed(ctx)
		if err != nil {
			return 0, fmt.Errorf("read which APIs the member lists: %w", err)
		}
		for version, uid := range missing {
			if listed[version] {
				uids[uid] = true
				delete(missing, version)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists.seen = uids
	switch {
	case len(missing) == 0:
		m.lists.since = time.Time{}
		return 0, nil
	case m.lists.since.IsZero():
		m.lists.since = now
	}
	if now.Sub(m.lists.since) < eager {
		return soon, nil
	}
	return retry, nil
}

// available tells whether the member serves an APIService of ours, and if not why.
func (m *member) available(name string) (bool, verdict) {
	answers, why := m.answers(name)
	if !answers {
		return false, why
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.all(apiServiceKind) {
		if a.GetName() == name && m.lists.seen[a.GetUID()] {
			return true, verdict{}
		}
	}
	return false, verdict{reason: v1alpha1.ExposureApplying, message: fmt.Sprintf("the member answers for APIService %s, and does not list its kinds yet", name)}
}

// listedBy reads, from a member's discovery document, the versions whose kinds it
// lists. An old server that has no such document in one piece lists versions only.
func listedBy(cfg *rest.Config) func(context.Context) (map[schema.GroupVersion]bool, error) {
	return func(ctx context.Context) (map[schema.GroupVersion]bool, error) {
		cfg := rest.CopyConfig(cfg)
		cfg.Timeout = requestTimeout
		client, err := discovery.NewDiscoveryClientForConfig(cfg)
		if err != nil {
			return nil, err
		}
		groups, kinds, _, err := client.GroupsAndMaybeResources()
		if err != nil {
			return nil, err
		}
		out := map[schema.GroupVersion]bool{}
		for _, group := range groups.Groups {
			for _, v := range group.Versions {
				version := schema.GroupVersion{Group: group.Name, Version: v.Version}
				out[version] = kinds == nil || kinds[version] != nil && len(kinds[version].APIResources) > 0
			}
		}
		return out, nil
	}
}
