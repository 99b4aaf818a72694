package moving

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// NoShare is the share of a cluster without the object.
const NoShare = "-"

// ShareChange is one cluster's share as is in effect, and as it is to be: "-" for none, "whole", or replicas.
type ShareChange struct {
	Cluster string `json:"cluster"`
	Now     string `json:"now"`
	Goal    string `json:"goal"`
}

func (s ShareChange) String() string {
	if s.Now == s.Goal {
		return s.Cluster + " " + s.Now
	}
	return fmt.Sprintf("%s %s -> %s", s.Cluster, s.Now, s.Goal)
}

// changesOf returns the clusters of a binding, by name. Without a goal, both sides are the same.
func changesOf(b *v1alpha1.ResourceBinding) []ShareChange {
	now, goal := textsOf(b.Spec.Clusters), textsOf(b.Decided())
	var names []string
	for name := range now {
		names = append(names, name)
	}
	for name := range goal {
		if _, has := now[name]; !has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := []ShareChange{}
	for _, name := range names {
		c := ShareChange{Cluster: name, Now: NoShare, Goal: NoShare}
		if text, has := now[name]; has {
			c.Now = text
		}
		if text, has := goal[name]; has {
			c.Goal = text
		}
		out = append(out, c)
	}
	return out
}

func textsOf(shares []v1alpha1.ClusterShare) map[string]string {
	out := map[string]string{}
	for _, c := range shares {
		out[c.Name] = "whole"
		if c.Replicas != nil {
			out[c.Name] = fmt.Sprint(*c.Replicas)
		}
	}
	return out
}

// sharesText is a decision in readable form.
func sharesText(shares []v1alpha1.ClusterShare) string {
	var parts []string
	for _, c := range shares {
		text := c.Name
		if c.Replicas != nil {
			text += fmt.Sprintf(" %d", *c.Replicas)
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func changesText(changes []ShareChange) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, ", ")
}
