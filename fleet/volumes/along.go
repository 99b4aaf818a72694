package volumes

import (
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// CarriesMounted reports whether claims go along that all pods of the object mount: then no pod may run in the new cluster
// before all have stopped in the other one.
func (v *Verdict) CarriesMounted() bool {
	for _, c := range v.Carried {
		if !c.Template {
			return true
		}
	}
	return false
}

// Carries reports whether a claim that pods mount by its name goes along with them.
func (v *Verdict) Carries(claim string) bool {
	for _, c := range v.Carried {
		if !c.Template && c.Name == claim {
			return true
		}
	}
	return false
}

// ClaimsOfReplica returns the names of the claims that go along with one replica. ordinal is the one in the name of its
// pod.
func (v *Verdict) ClaimsOfReplica(object string, ordinal int32) (names []string) {
	for _, c := range v.Carried {
		if c.Template {
			names = append(names, claimName(c.Name, object)+fmt.Sprint(ordinal))
		}
	}
	return names
}

// ClaimsOfAll returns the names of the claims that go along with replicas that share some of them: first and n are the
// ordinals of the pods, for claims that are made from templates.
func (v *Verdict) ClaimsOfAll(object string, first, n int32) (names []string) {
	for _, c := range v.Carried {
		if !c.Template {
			names = append(names, c.Name)
		}
	}
	for ordinal := range n {
		names = append(names, v.ClaimsOfReplica(object, first+ordinal)...)
	}
	return names
}

// Replication returns how the replication of a claim changes its direction; nil if the claim has no copy in other clusters.
func (v *Verdict) Replication(claim, object string) *v1alpha1.VolumeReplication {
	for _, c := range v.Carried {
		ordinal, isMade := strings.CutPrefix(claim, claimName(c.Name, object))
		isMade = isMade && c.Template && ordinal != "" && strings.Trim(ordinal, "0123456789") == ""
		if isMade || !c.Template && c.Name == claim {
			return c.Replication
		}
	}
	return nil
}

// claimName returns the names of the claims that the StatefulSet controller makes from a template, without the ordinals.
func claimName(template, object string) string { return template + "-" + object + "-" }
