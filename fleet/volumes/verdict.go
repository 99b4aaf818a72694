package volumes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Verdict is what the volumes of an object mean for its moves.
type Verdict struct {
	// Stays: the object does not move. The strictest mode of its classes decides.
	Stays bool
	// Carried are the claims and the templates of claims that go along with the pods, if the object does not stay.
	Carried []Claim
	// Shared: the object has claims, and all of them lead to the same data in every cluster.
	Shared bool
	// Templates: each replica has volumes that keep it; Mounted: all pods in a cluster share one.
	Templates, Mounted bool
	// Classes that keep the object, sorted; "" stands for claims without one.
	Classes []string
	// policies that say so, by class.
	policies map[string]string
}

// Judge returns what some claims mean under policies.
func Judge(claims []Claim, policies *Policies) Verdict {
	v := Verdict{Shared: len(claims) > 0}
	var stay []Claim
	for _, c := range claims {
		mode := policies.ModeOf(c.Class)
		if !c.Unknown && mode == v1alpha1.VolumesShared {
			continue
		}
		v.Shared = false
		switch {
		case c.Unknown:
			continue
		case mode == v1alpha1.VolumesReplicated:
			c.Replication = policies.For(c.Class).Spec.Replication
			v.Carried = append(v.Carried, c)
		case mode == v1alpha1.VolumesReattach:
			v.Carried = append(v.Carried, c)
		default:
			stay = append(stay, c)
		}
		v.Templates, v.Mounted = v.Templates || c.Template, v.Mounted || !c.Template
	}
	keeping := v.Carried
	if v.Stays = len(stay) > 0; v.Stays {
		keeping, v.Carried = stay, nil
	}
	for _, c := range keeping {
		if !slices.Contains(v.Classes, c.Class) {
			v.Classes = append(v.Classes, c.Class)
		}
		if p := policies.For(c.Class); p != nil {
			if v.policies == nil {
				v.policies = map[string]string{}
			}
			v.policies[c.Class] = p.Name
		}
	}
	slices.Sort(v.Classes)
	return v
}

// Text names the classes: "StorageClass fast", "StorageClass fast, slow", "no StorageClass".
func (v *Verdict) Text() string {
	named := slices.DeleteFunc(slices.Clone(v.Classes), func(c string) bool { return c == "" })
	switch {
	case len(named) == 0:
		return "no StorageClass"
	case len(named) < len(v.Classes):
		return "StorageClass " + strings.Join(named, ", ") + " or none"
	}
	return "StorageClass " + strings.Join(named, ", ")
}

// Remedy says what a user can do to move the object.
func (v *Verdict) Remedy() string {
	if len(v.Carried) > 0 {
		return "Its volumes go along when that is possible (modes Reattach and Replicated)"
	}
	class := v.Classes[0]
	selected := class
	if class == "" {
		selected = fmt.Sprintf("all classes (%q)", v1alpha1.AllStorageClasses)
	}
	set := "create a VolumePolicy for " + selected + " with mode "
	if by := v.policies[class]; by != "" {
		set = fmt.Sprintf("change VolumePolicy %s, which selects %s, to mode ", by, selected)
	}
	text := "If its claims lead to the same data in every cluster, " + set + string(v1alpha1.VolumesShared)
	text += "; if a CSI driver reaches the same storage from every cluster, use mode " + string(v1alpha1.VolumesReattach)
	return text + ". To begin elsewhere with empty volumes, delete the object and its claims, and create it again"
}
