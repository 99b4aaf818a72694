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
	for _, c := range claims {
		switch {
		case c.Unknown:
			v.Shared = false
			continue
		case policies.ModeOf(c.Class) == v1alpha1.VolumesShared:
			continue
		}
		v.Stays, v.Shared = true, false
		v.Templates, v.Mounted = v.Templates || c.Template, v.Mounted || !c.Template
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
	class := v.Classes[0]
	selected := class
	if class == "" {
		selected = fmt.Sprintf("all classes (%q)", v1alpha1.AllStorageClasses)
	}
	same := "create a VolumePolicy with mode Shared for " + selected
	if by := v.policies[class]; by != "" {
		same = fmt.Sprintf("set mode Shared for %s, which has mode None by VolumePolicy %s", selected, by)
	}
	return "If its claims lead to the same data in every cluster, " + same +
		". To begin elsewhere with empty volumes, delete the object and its claims, and create it again"
}
