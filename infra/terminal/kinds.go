package terminal

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/reference"
)

// kind is a kind of a provider, as the server tells of it.
type kind struct {
	schema.GroupVersionResource
	name, singular string
	short          []string
}

// kinds are all kinds of all Providers, sorted.
type kinds []kind

// kinds asks the server what its Providers serve.
func (s *Session) kinds() (kinds, error) {
	_, lists, err := s.Discovery.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // other groups are not of interest
		return nil, fmt.Errorf("ask Atoll which kinds there are: %w", err)
	}
	var out kinds
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || !isProviders(gv.Group) {
			continue
		}
		for _, r := range l.APIResources {
			if !strings.Contains(r.Name, "/") {
				out = append(out, kind{gv.WithResource(r.Name), r.Kind, r.SingularName, r.ShortNames})
			}
		}
	}
	slices.SortFunc(out, func(a, b kind) int { return strings.Compare(a.id(), b.id()) })
	return out, nil
}

// isProviders tells whether a group is of a Provider.
func isProviders(group string) bool { return strings.HasSuffix(group, "."+v1alpha1.ProvidersDomain) }

// id is the kind with its group.
func (k kind) id() string { return k.name + "." + k.Group }

func (k kind) reference(name string) v1alpha1.ObjectReference {
	return v1alpha1.ObjectReference{Group: k.Group, Kind: k.name, Name: name}
}

// called tells whether a word means the kind: as kubectl takes it, with its group or the beginning of it.
func (k kind) called(word string) bool {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	if group != "" && group != k.Group && !strings.HasPrefix(k.Group, group+".") {
		return false
	}
	return name == strings.ToLower(k.name) || name == k.Resource || name == k.singular || slices.Contains(k.short, name)
}

// ofType tells whether the kind is that of a provider's type, by the rule that gives kinds their names.
func (k kind) ofType(name string, data bool) bool {
	prefix, short, _ := strings.Cut(name, "_")
	is := strings.ToLower(k.name)
	for _, candidate := range []string{short, prefix + short} {
		if candidate = squashed(candidate); data {
			candidate = "data" + candidate
		}
		if candidate == is {
			return true
		}
	}
	return false
}

// squashed leaves letters and digits, in lower case.
func squashed(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// typed finds the kind of a provider's type. Of several, that of the Provider that is called like the type's
// prefix.
func (all kinds) typed(name string, data bool) kinds {
	var found kinds
	for _, k := range all {
		if k.ofType(name, data) {
			found = append(found, k)
		}
	}
	prefix, _, _ := strings.Cut(name, "_")
	for _, k := range found {
		if k.Group == prefix+"."+v1alpha1.ProvidersDomain {
			return kinds{k}
		}
	}
	return found
}

// find reads what names an object: KIND/NAME, as kubectl takes it, or TYPE["NAME"], as plans show it.
func (all kinds) find(flag, text, namespace string, language *reference.Language) (kind, string, error) {
	if word, name, ok := strings.Cut(text, "/"); ok && !strings.ContainsAny(word, `"[`) {
		if word == "" || name == "" {
			return kind{}, "", fmt.Errorf("%s %s: a part is missing: write KIND/NAME, as in network/main", flag, text)
		}
		var found kinds
		for _, k := range all {
			if k.called(word) {
				found = append(found, k)
			}
		}
		k, err := all.one(found, flag, text, word)
		return k, name, err
	}
	ref, err := language.Reference(text, namespace)
	switch {
	case err != nil || ref.Ref.Kind == reference.Kubernetes || len(ref.Path) > 0:
		return kind{}, "", fmt.Errorf(`%s %s names no resource: write KIND/NAME, as in network/main, or the address that plans show, in quotes: '%s demo_network["main"]'`, flag, text, flag)
	case ref.Namespace != namespace:
		return kind{}, "", fmt.Errorf("%s %s: a plan is of one namespace, and this one is of %s: name the other with -n", flag, text, namespace)
	}
	k, err := all.one(all.typed(ref.Type, ref.Ref.Kind == reference.Data), flag, text, ref.Type)
	return k, ref.Name, err
}

func (all kinds) one(found kinds, flag, text, word string) (kind, error) {
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var ids []string
		for _, k := range found {
			ids = append(ids, k.id())
		}
		return kind{}, fmt.Errorf("%s %s may be one of several: name the kind with its group: %s", flag, text, joined(ids))
	case len(all) == 0:
		return kind{}, fmt.Errorf("%s %s: no Provider serves any kind: see `kubectl get providers`", flag, text)
	}
	return kind{}, fmt.Errorf("%s %s: no Provider serves a kind %s: see `kubectl api-resources | grep %s`", flag, text, word, v1alpha1.ProvidersDomain)
}

// joined lists words for a sentence.
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
