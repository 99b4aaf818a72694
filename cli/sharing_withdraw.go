package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// withdraw decides what becomes of the SharedAPIs when groups are to be exposed no
// more: from some clusters, or from everywhere. What is being removed already is
// given too, to be waited for.
func (p present) withdraw(groups, from []string) ([]change, error) {
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
		c := change{name: s.Name, was: s, clusters: hit, groups: taken}
		if s.DeletionTimestamp == nil {
			spec, err := p.narrow(s, taken, rest, from)
			if err != nil {
				return nil, err
			}
			c.spec = spec
			c.news = told(s, spec)
		}
		out = append(out, c)
	}
	return out, nil
}

// narrow gives what is left of a SharedAPI: nil if that is nothing.
func (p present) narrow(s *v1alpha1.SharedAPI, taken, rest, from []string) (*v1alpha1.SharedAPISpec, error) {
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
				return nil, fmt.Errorf("SharedAPI %s chooses its clusters by label (%s): take the label off cluster %s, or change it with `kubectl edit sharedapi %s`", s.Name, chosenBy(s), name, s.Name)
			}
		}
	case len(stay) == len(spec.Clusters): // only something left over there
	case len(rest) > 0:
		here, _ := divide(spec.Clusters, from)
		return nil, fmt.Errorf("SharedAPI %s exposes %s together: `atoll unexpose %s --from %s`, then `atoll expose %s --to %s`",
			s.Name, few(s.Spec.Groups), strings.Join(s.Spec.Groups, ","), strings.Join(here, ","), strings.Join(rest, ","), strings.Join(here, ","))
	default:
		spec.Clusters = stay
	}
	return spec, nil
}

func told(s *v1alpha1.SharedAPI, spec *v1alpha1.SharedAPISpec) (news []string) {
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

// holders gives the clusters that serve a SharedAPI's groups, should, or still hold
// something of them.
func (p present) holders(s *v1alpha1.SharedAPI) []string {
	out := entered(s)
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

// someExposed refuses what is not there to be withdrawn: a misspelt name should not
// look like success.
func (p present) someExposed(groups, from []string) error {
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
			return fmt.Errorf("%s is not exposed: no group is (`kubectl get sharedapis`)", group)
		case !slices.Contains(all, group):
			return fmt.Errorf("%s is not exposed%s: exposed are %s", group, didYouMean(group, all), few(all))
		}
		for _, name := range from {
			if slices.Contains(at[group], name) {
				continue
			}
			meant := ""
			if p.cluster(name) == nil {
				meant = didYouMean(name, at[group])
			}
			return fmt.Errorf("%s is not exposed to %s%s: it is to %s", group, name, meant, few(at[group]))
		}
	}
	return nil
}

// divide splits a list by whether the elements are in another.
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
