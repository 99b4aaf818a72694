package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// writeInfra prints the measurements, with OpenTofu and Atoll in one line per step.
func writeInfra(w io.Writer, runs []infraRun) {
	if len(runs) == 0 {
		return
	}
	find := func(system string, of infraRun) *infraRun {
		for i := range runs {
			if r := &runs[i]; r.System == system && r.Shape == of.Shape && r.Count == of.Count && r.Step == of.Step {
				return r
			}
		}
		return nil
	}
	fmt.Fprintf(w, "\nResources planned and applied; CPU and peak memory (MiB) of all processes together; OpenTofu : Atoll, more than 1 is better for Atoll\n\n")
	fmt.Fprintln(w, "| shape | resources | step | Atoll s | CPU s | MiB | OpenTofu s | CPU s | MiB | time | CPU | memory |")
	fmt.Fprintln(w, "| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
	for _, ours := range runs {
		if ours.System != "atoll" {
			continue
		}
		fmt.Fprintf(w, "| %s | %d | %s | %.2f | %.2f | %.0f |", ours.Shape, ours.Count, ours.Step, ours.Seconds, ours.CPU, ours.PeakMiB)
		theirs := find("opentofu", ours)
		switch {
		case theirs == nil:
			fmt.Fprintln(w, " | | | | | |")
		case theirs.Failed != "":
			fmt.Fprintf(w, " not in %.0f | | | | | |\n", theirs.Seconds)
		default:
			fmt.Fprintf(w, " %.2f | %.2f | %.0f | %.1f | %.1f | %.1f |\n", theirs.Seconds, theirs.CPU, theirs.PeakMiB,
				theirs.Seconds/max(ours.Seconds, 0.001), theirs.CPU/max(ours.CPU, 0.01), theirs.PeakMiB/max(ours.PeakMiB, 1))
		}
	}
	writeInfraGoals(w, runs)
}

// writeInfraGoals prints the figures that the project has goals for.
func writeInfraGoals(w io.Writer, runs []infraRun) {
	fmt.Fprintln(w)
	var stolen, others float64
	plans := map[string][]float64{} // multiples of the provider's own calls, by shape and size
	for _, r := range runs {
		stolen, others = max(stolen, r.Stolen), max(others, r.Others)
		if n := len(r.Provider); n > 0 {
			sum := 0.0
			for _, seconds := range r.Provider {
				sum += seconds
			}
			of, times := fmt.Sprintf("%s, %d", r.Shape, r.Count), r.Seconds*float64(n)/sum
			plans[of] = append(plans[of], times)
			fmt.Fprintf(w, "%s: the provider's own calls for the first plan take %.1f s, before and after it; the plan takes %.2f times their mean\n", of, r.Provider, times)
		}
	}
	for _, of := range slices.Sorted(maps.Keys(plans)) {
		if all := plans[of]; len(all) > 1 {
			slices.Sort(all)
			fmt.Fprintf(w, "%s: the median of %d is %.2f\n", of, len(all), (all[(len(all)-1)/2]+all[len(all)/2])/2)
		}
	}
	printed := map[string]bool{}
	for _, small := range runs {
		for _, large := range runs {
			if of := fmt.Sprint(small.Shape, small.Step, small.Count); printed[of] {
				continue // measured several times
			} else if small.System == "atoll" && large.System == "atoll" && small.Shape == large.Shape && small.Step == large.Step && large.Count == 10*small.Count {
				printed[of] = true
				fmt.Fprintf(w, "%s, from %d to %d: %s takes %.1f times as long, %.1f times the CPU, %.1f times the memory\n", small.Shape, small.Count, large.Count, small.Step,
					large.Seconds/max(small.Seconds, 0.001), large.CPU/max(small.CPU, 0.01), large.PeakMiB/max(small.PeakMiB, 1))
			}
		}
	}
	fmt.Fprintf(w, "meanwhile other processes used at most %.2f CPUs, and at most %.2f were stolen\n", others, stolen)
}
