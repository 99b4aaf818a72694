package transition

import (
	"maps"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// mostSteps bounds a preview.
const mostSteps = 200

// Steps returns the steps to the goal, if all clusters run what each step gives them. The last one is the goal, unless
// the transition would rest before: then it is the output that says why.
func Steps(in Input) (out []Output) {
	in.Limits.Paused, in.Limits.Soak = false, 0
	in.Now, in.Reports = withoutDrains(in.Now), maps.Clone(in.Reports)
	for cluster, r := range in.Reports {
		r.Exported = false // endpoints take moments, and change no step
		in.Reports[cluster] = r
	}
	for range mostSteps {
		step := Step(in)
		same := slices.Equal(withoutRevisions(step.Next), withoutRevisions(in.Now))
		if same && (step.Done || slices.Equal(step.Transfers, in.Volumes.Transfers)) {
			if !step.Done {
				return append(out, step)
			}
			return out
		}
		if !same {
			out = append(out, step)
		}
		if step.Done {
			return out
		}
		in.Now, in.Volumes.Transfers, in.Underway, in.Progress = step.Next, step.Transfers, true, in.At
		in.Reports = perfect(&in)
	}
	return out
}

// perfect returns the reports of clusters that run the shares in effect.
func perfect(in *Input) map[string]Report {
	out := make(map[string]Report, len(in.Now))
	for cluster, r := range in.Reports {
		if r.Lost {
			out[cluster] = r
		}
	}
	for _, s := range in.Now {
		n := s.Replicas
		if s.Whole {
			n = in.Wanted
		}
		out[s.Cluster] = Report{Present: true, Current: true, Settled: true, Healthy: true, Available: n, Running: n, Revision: s.Revision}
	}
	for _, t := range in.Volumes.Transfers {
		for _, cluster := range []string{t.From, t.To} {
			r, reported := out[cluster]
			if !reported || r.Lost {
				continue
			}
			if r.Volumes == nil {
				r.Volumes = map[string]VolumeReport{}
			}
			r.Volumes[t.Claim] = VolumeReport{State: ideal(&t, cluster), Revision: t.Revision}
			out[cluster] = r
		}
	}
	return out
}

// ideal returns what a cluster reports when it has done its part of a transfer.
func ideal(t *Transfer, cluster string) v1alpha1.VolumeState {
	if cluster == t.From {
		switch t.Phase {
		case v1alpha1.VolumePreparing:
			return v1alpha1.VolumeInUse
		case v1alpha1.VolumeRemoving:
			return v1alpha1.VolumeAbsent
		case v1alpha1.VolumeReturning:
			return v1alpha1.VolumeSettled
		}
		return v1alpha1.VolumeDetached
	}
	switch t.Phase {
	case v1alpha1.VolumePreparing:
		return v1alpha1.VolumeReady
	case v1alpha1.VolumeSettling:
		return v1alpha1.VolumeSettled
	case v1alpha1.VolumeCleaning:
		return v1alpha1.VolumeAbsent
	}
	return v1alpha1.VolumeBound
}

func withoutRevisions(shares []Share) []Share {
	out := slices.Clone(shares)
	for i := range out {
		out[i].Revision = 0
	}
	return out
}
