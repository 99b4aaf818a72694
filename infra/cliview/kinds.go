package cliview

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/expr"
)

// kind is a provider's kind, as discovery lists it.
type kind struct {
	schema.GroupVersionResource
	name, singular string
	short          []string
}

// kinds are all kinds of all Providers, sorted.
type kinds []kind

// kinds discovers the kinds that Providers serve.
func (s *Session) kinds() (kinds, error) {
	_, lists, err := s.Discovery.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // errors of other groups do not matter
		return nil, fmt.Errorf("discover the kinds: %w", err)
	}
	var out kinds
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || !isProviderGroup(gv.Group) {
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

// isProviderGroup reports whether a group belongs to a Provider.
func isProviderGroup(group string) bool {
	return strings.HasSuffix(group, "."+v1alpha1.ProvidersDomain)
}

// id returns the kind with its group.
func (k kind) id() string { return k.name + "." + k.Group }

func (k kind) reference(name string) v1alpha1.ObjectReference {
	return v1alpha1.ObjectReference{Group: k.Group, Kind: k.name, Name: name}
}

// matches reports whether a word names the kind as in kubectl: with its group, the beginning of its group, or
// neither.
func (k kind) matches(word string) bool {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	if group != "" && group != k.Group && !strings.HasPrefix(k.Group, group+".") {
		return false
	}
	return name == strings.ToLower(k.name) || name == k.Resource || name == k.singular || slices.Contains(k.short, name)
}

// ofType reports whether the kind serves a provider's type, by the rule that derives the names of kinds.
func (k kind) ofType(name string, data bool) bool {
	prefix, short, _ := strings.Cut(name, "_")
	is := strings.ToLower(k.name)
	for _, candidate := range []string{short, prefix + short} {
		if candidate = alphanumeric(candidate); data {
			candidate = "data" + candidate
		}
		if candidate == is {
			return true
		}
	}
	return false
}

// alphanumeric returns the letters and digits of a name, in lower case.
func alphanumeric(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// typed returns the kinds of a provider's type. If there are several, the Provider with the type's prefix as
// its name takes precedence.
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

// find resolves an object's name: KIND/NAME, as in kubectl, or TYPE["NAME"], as in a plan.
func (all kinds) find(flag, text, namespace string, language *expr.Language) (kind, string, error) {
	if word, name, ok := strings.Cut(text, "/"); ok && !strings.ContainsAny(word, `"[`) {
		if word == "" || name == "" {
			return kind{}, "", fmt.Errorf("%s %s: incomplete: use KIND/NAME, such as network/main", flag, text)
		}
		var found kinds
		for _, k := range all {
			if k.matches(word) {
				found = append(found, k)
			}
		}
		k, err := all.single(found, flag, text, word)
		return k, name, err
	}
	ref, err := language.Reference(text, namespace)
	switch {
	case err != nil || ref.Ref.Kind == expr.Kubernetes || len(ref.Path) > 0:
		return kind{}, "", fmt.Errorf(`%s %s: invalid resource: use KIND/NAME, such as network/main, or the address in a plan, in quotes: '%s demo_network["main"]'`, flag, text, flag)
	case ref.Namespace != namespace:
		return kind{}, "", fmt.Errorf("%s %s: the plan is for namespace %s: choose another with -n", flag, text, namespace)
	}
	k, err := all.single(all.typed(ref.Type, ref.Ref.Kind == expr.Data), flag, text, ref.Type)
	return k, ref.Name, err
}

func (all kinds) single(found kinds, flag, text, word string) (kind, error) {
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var ids []string
		for _, k := range found {
			ids = append(ids, k.id())
		}
		return kind{}, fmt.Errorf("%s %s is ambiguous: add the group: %s", flag, text, joined(ids))
	case len(all) == 0:
		return kind{}, fmt.Errorf("%s %s: no Provider serves any kind: check `kubectl get providers`", flag, text)
	}
	return kind{}, fmt.Errorf("%s %s: no Provider serves kind %s: check `kubectl api-resources | grep %s`", flag, text, word, v1alpha1.ProvidersDomain)
}

// joined joins words with commas and "or".
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
