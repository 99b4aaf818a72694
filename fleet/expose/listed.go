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

// eager is how long a member that does not list a version yet is polled frequently.
const eager = 10 * time.Second

// A member serves a version before it lists its kinds in the discovery document that kubectl and
// RESTMappers read. The aggregator updates the document a moment later. The controller checks it
// once for each version, so that clients that wait for Ready can then use the kinds.

// listing records which APIServices, by UID, the member was seen to list.
type listing struct {
	seen  map[types.UID]bool
	since time.Time // when the first unlisted version was noticed; zero if there is none
}

// checkListed reads the member's discovery document if a served version has not been seen in it. It
// returns the delay before the next check.
func (m *member) checkListed(ctx context.Context, now time.Time) (again time.Duration, err error) {
	missing := map[schema.GroupVersion]types.UID{}
	uids := map[types.UID]bool{}
	for _, a := range m.ours() {
		if a.GetKind() != apiServiceKind {
			continue
		}
		uids[a.GetUID()] = m.lists.seen[a.GetUID()]
		if answers, _ := m.reachable(a.GetName()); answers && !m.lists.seen[a.GetUID()] {
			missing[versionOf(a)] = a.GetUID()
		}
	}
	if len(missing) > 0 {
		listed, err := m.memberAccess.listed(ctx)
		if err != nil {
			return 0, fmt.Errorf("read the discovery document of the member: %w", err)
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
		return syncDelay, nil
	}
	return retryDelay, nil
}

// available reports whether the member serves and lists one of our APIServices, and otherwise the
// reason.
func (m *member) available(name string) (bool, exposure) {
	answers, why := m.reachable(name)
	if !answers {
		return false, why
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.all(apiServiceKind) {
		if a.GetName() == name && m.lists.seen[a.GetUID()] {
			return true, exposure{}
		}
	}
	return false, exposure{reason: v1alpha1.ExposureApplying, message: fmt.Sprintf("the member serves APIService %s, and does not list its kinds in discovery yet", name)}
}

// listedBy returns a function that reads from a member's discovery document which versions have
// their kinds listed. Old servers without an aggregated document list only versions.
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
