package sharing

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// withdraw computes the changes of the SharedAPIs to withdraw groups from some
// clusters, or from all. It also returns SharedAPIs that are already being removed, so
// that the caller can wait for them.
func (p state) withdraw(groups, from []string) ([]change, error) {
	if err := p.someExposed(groups, from); err != nil {
		return nil, err
	}
	var out []change
	for _, s := range p.shared {
		taken, rest := divide(s.Spec.Groups, groups)
		if len(taken) == 0 {
			continue
		}
		hit := p.holders(s)
		if from != nil {
			hit, _ = divide(hit, from)
			if len(hit) == 0 {
				continue
			}
		}
		c := change{name: s.Name, old: s, clusters: hit, groups: taken}
		if s.DeletionTimestamp == nil {
			spec, err := p.narrow(s, taken, rest, from)
			if err != nil {
				return nil, err
			}
			c.spec = spec
			c.diff = describeChange(s, spec)
		}
		out = append(out, c)
	}
	return out, nil
}

// narrow returns the remaining spec of a SharedAPI, or nil if nothing remains.
func (p state) narrow(s *v1alpha1.SharedAPI, taken, rest, from []string) (*v1alpha1.SharedAPISpec, error) {
	spec := s.Spec.DeepCopy()
	_, stay := divide(spec.Clusters, from)
	switch {
	case from == nil, spec.ClusterSelector == nil && len(stay) == 0:
		if len(rest) == 0 {
			return nil, nil
		}
		spec.Groups = rest
	case spec.ClusterSelector != nil:
		for _, name := range from {
			if c := p.cluster(name); c != nil && s.Selects(c) {
				return nil, fmt.Errorf("SharedAPI %s selects its clusters by label (%s): remove the label from cluster %s, or run `kubectl edit sharedapi %s`", s.Name, chosenBy(s), name, s.Name)
			}
		}
	case len(stay) == len(spec.Clusters): // only leftovers there
	case len(rest) > 0:
		here, _ := divide(spec.Clusters, from)
		return nil, fmt.Errorf("SharedAPI %s exposes %s together: run `atoll unexpose %s --from %s`, then `atoll expose %s --to %s`",
			s.Name, names.List(s.Spec.Groups), strings.Join(s.Spec.Groups, ","), strings.Join(here, ","), strings.Join(rest, ","), strings.Join(here, ","))
	default:
		spec.Clusters = stay
	}
	return spec, nil
}

func describeChange(s *v1alpha1.SharedAPI, spec *v1alpha1.SharedAPISpec) (news []string) {
	if spec == nil {
		return nil
	}
	if _, gone := divide(s.Spec.Groups, spec.Groups); len(gone) > 0 {
		news = append(news, "without "+strings.Join(gone, ", "))
	}
	if _, gone := divide(s.Spec.Clusters, spec.Clusters); len(gone) > 0 {
		news = append(news, "no longer for "+strings.Join(gone, ", "))
	}
	return news
}

// holders returns the clusters that serve a SharedAPI's groups, should serve them, or
// have not removed them completely.
func (p state) holders(s *v1alpha1.SharedAPI) []string {
	out := listedClusters(s)
	if s.DeletionTimestamp == nil {
		out = append(out, s.Spec.Clusters...)
		for _, c := range p.clusters {
			if s.Selects(c) {
				out = append(out, c.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// someExposed returns an error for groups or clusters without an exposure: a misspelt
// name should not look like success.
func (p state) someExposed(groups, from []string) error {
	var all []string
	at := map[string][]string{}
	for _, s := range p.shared {
		for _, group := range s.Spec.Groups {
			all = append(all, group)
			at[group] = append(at[group], p.holders(s)...)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, group := range groups {
		switch {
		case len(all) == 0:
			return fmt.Errorf("%s is not exposed: no groups are exposed (`kubectl get sharedapis`)", group)
		case !slices.Contains(all, group):
			return fmt.Errorf("%s is not exposed%s: the exposed groups are %s", group, names.DidYouMean(group, all), names.List(all))
		}
		for _, name := range from {
			if slices.Contains(at[group], name) {
				continue
			}
			meant := ""
			if p.cluster(name) == nil {
				meant = names.DidYouMean(name, at[group])
			}
			return fmt.Errorf("%s is not exposed to %s%s: it is exposed to %s", group, name, meant, names.List(at[group]))
		}
	}
	return nil
}

// divide splits a list into the elements that are in another list and the others.
func divide(list, by []string) (in, out []string) {
	for _, x := range list {
		if slices.Contains(by, x) {
			in = append(in, x)
		} else {
			out = append(out, x)
		}
	}
	return in, out
}
