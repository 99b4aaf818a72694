package transition

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// DefaultDeadline is how long a transition waits without progress.
const DefaultDeadline = 10 * time.Minute

// Limits are a TransitionPolicy for a number of replicas.
type Limits struct {
	MaxSurge, MaxUnavailable int32
	Soak, Deadline           time.Duration
	OnFailure                v1alpha1.TransitionFailure
	Paused                   bool
}

// LimitsFor resolves policies for a wanted number of replicas. The first one that has a field decides about it.
func LimitsFor(wanted int32, policies ...*v1alpha1.TransitionPolicy) Limits {
	quarter, none := intstr.FromString("25%"), intstr.FromInt32(0)
	p := v1alpha1.TransitionPolicy{}
	for i := len(policies) - 1; i >= 0; i-- {
		overlay(&p, policies[i])
	}
	surge, unavailable := &quarter, &none
	if p.MaxSurge != nil {
		surge = p.MaxSurge
	}
	if p.MaxUnavailable != nil {
		unavailable = p.MaxUnavailable
	}
	out := Limits{MaxSurge: scaled(surge, wanted, true), MaxUnavailable: scaled(unavailable, wanted, false), Deadline: DefaultDeadline, OnFailure: p.OnFailure}
	if p.Soak != nil {
		out.Soak = p.Soak.Duration
	}
	if p.Deadline != nil {
		out.Deadline = p.Deadline.Duration
	}
	out.Paused = p.Paused != nil && *p.Paused
	return out
}

// overlay sets the fields of a policy that another one has.
func overlay(p, over *v1alpha1.TransitionPolicy) {
	if over == nil {
		return
	}
	if over.MaxSurge != nil {
		p.MaxSurge = over.MaxSurge
	}
	if over.MaxUnavailable != nil {
		p.MaxUnavailable = over.MaxUnavailable
	}
	if over.Soak != nil {
		p.Soak = over.Soak
	}
	if over.Deadline != nil {
		p.Deadline = over.Deadline
	}
	if over.OnFailure != "" {
		p.OnFailure = over.OnFailure
	}
	if over.Paused != nil {
		p.Paused = over.Paused
	}
}

// scaled resolves a number or a percentage. One that cannot be read, which validation excludes, counts as 0.
func scaled(value *intstr.IntOrString, of int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(value, int(of), up)
	if err != nil {
		return 0
	}
	return int32(max(n, 0))
}

// ObjectSettings reads an object's TransitionAnnotation.
func ObjectSettings(annotation string) (v1alpha1.ObjectTransition, error) {
	var out v1alpha1.ObjectTransition
	if annotation == "" {
		return out, nil
	}
	if err := json.Unmarshal([]byte(annotation), &out); err != nil {
		return v1alpha1.ObjectTransition{}, fmt.Errorf("annotation %s is no valid JSON of transition settings, and is ignored: %w", v1alpha1.TransitionAnnotation, err)
	}
	return out, nil
}

// Floor is how many replicas have to stay available, and what requires it.
type Floor struct {
	Available int32
	By        string
}

// Budget is a PodDisruptionBudget over all clusters together.
type Budget struct {
	Name                         string
	MinAvailable, MaxUnavailable *intstr.IntOrString
	// OthersWanted and OthersAvailable count the replicas of other objects that it selects.
	OthersWanted, OthersAvailable int32
}

// FloorOf returns what budgets require of an object with a wanted number of replicas.
func FloorOf(wanted int32, budgets []Budget) (out Floor) {
	for _, b := range budgets {
		all := wanted + b.OthersWanted
		required := int32(0)
		switch {
		case b.MinAvailable != nil:
			required = scaled(b.MinAvailable, all, true)
		case b.MaxUnavailable != nil:
			required = all - scaled(b.MaxUnavailable, all, true)
		}
		// It cannot require more of this object than there is to be: the rest is missing elsewhere.
		if required = min(required-b.OthersAvailable, wanted); required > out.Available {
			out = Floor{required, "PodDisruptionBudget " + b.Name}
		}
	}
	return out
}
