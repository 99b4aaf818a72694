// Package volumes decides whether an object may move to another cluster although its pods have volumes here.
//
// A volume exists in one cluster. An object that moves would begin elsewhere with empty volumes, under the same
// names, and nothing would report that. So it stays, unless a VolumePolicy says that the volumes of its
// StorageClasses have the same data everywhere. It is pure: DESIGN.md explains the choices.
package volumes

import (
	"cmp"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Policies are VolumePolicies, prepared for many decisions. They are immutable and safe for concurrent use; nil has no
// policies.
type Policies struct {
	byClass map[string]*v1alpha1.VolumePolicy
	// others applies to all classes that no policy names; nil if there is none.
	others *v1alpha1.VolumePolicy
}

// Compile prepares policies, given in any order.
func Compile(all []*v1alpha1.VolumePolicy) *Policies {
	p := &Policies{byClass: map[string]*v1alpha1.VolumePolicy{}}
	for _, policy := range slices.SortedFunc(slices.Values(all), byAge) {
		for _, class := range classesOf(policy) {
			switch {
			case class == v1alpha1.AllStorageClasses && p.others == nil:
				p.others = policy
			case class != v1alpha1.AllStorageClasses && p.byClass[class] == nil:
				p.byClass[class] = policy
			}
		}
	}
	return p
}

// byAge orders policies: the older one applies.
func byAge(a, b *v1alpha1.VolumePolicy) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// classesOf returns the classes that a policy selects.
func classesOf(p *v1alpha1.VolumePolicy) []string {
	if len(p.Spec.StorageClasses) == 0 {
		return []string{v1alpha1.AllStorageClasses}
	}
	return p.Spec.StorageClasses
}

// For returns the policy for a class, nil if there is none. "" is the class of claims that name none: the default class
// of their cluster is not known here, so only a policy for all classes selects them.
func (p *Policies) For(class string) *v1alpha1.VolumePolicy {
	if p == nil {
		return nil
	}
	if policy := p.byClass[class]; policy != nil && class != "" {
		return policy
	}
	return p.others
}

// ModeOf returns the mode of a class. A mode that this version does not know counts as None.
func (p *Policies) ModeOf(class string) v1alpha1.VolumeMode {
	if policy := p.For(class); policy != nil {
		switch policy.Spec.Mode {
		case v1alpha1.VolumesShared, v1alpha1.VolumesReattach, v1alpha1.VolumesReplicated:
			return policy.Spec.Mode
		}
	}
	return v1alpha1.VolumesNone
}

// Overruled is a class of a policy to which an older policy applies.
type Overruled struct {
	Class string
	// By is the name of the older policy.
	By string
}

// Overruled returns the classes of a policy to which older policies apply, and whether these are all of its classes.
func (p *Policies) Overruled(policy *v1alpha1.VolumePolicy) (out []Overruled, all bool) {
	classes := classesOf(policy)
	for _, class := range classes {
		by := p.byClass[class]
		if class == v1alpha1.AllStorageClasses {
			by = p.others
		}
		if by != nil && by.Name != policy.Name {
			out = append(out, Overruled{class, by.Name})
		}
	}
	return out, len(out) == len(classes)
}
