package transition

import "slices"

// mostSteps bounds a preview.
const mostSteps = 200

// Steps returns the steps to the goal, if all clusters run what each step gives them. The last one is the goal, unless
// the transition would rest before: then it is the output that says why.
func Steps(in Input) (out []Output) {
	in.Limits.Paused, in.Limits.Soak = false, 0
	for range mostSteps {
		step := Step(in)
		if slices.Equal(withoutRevisions(step.Next), withoutRevisions(in.Now)) {
			if !step.Done {
				return append(out, step)
			}
			return out
		}
		if out = append(out, step); step.Done {
			return out
		}
		in.Now, in.Underway, in.Progress = step.Next, true, in.At
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
	return out
}

func withoutRevisions(shares []Share) []Share {
	out := slices.Clone(shares)
	for i := range out {
		out[i].Revision = 0
	}
	return out
}
