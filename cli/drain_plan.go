package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// drainPlan is what a drain would move.
type drainPlan struct {
	moves []scheduler.Move
	stay  []blockedObject // objects that no other cluster takes
}

// planDrain returns what moves if a cluster is drained. It changes the state.
func planDrain(s *scheduler.State, cluster string) (*drainPlan, error) {
	return planChange(s, cluster, previewDrain)
}

// planLeave is planDrain for a cluster that leaves the fleet without a drain. It changes the state, too.
func planLeave(s *scheduler.State, cluster string) (*drainPlan, error) {
	return planChange(s, cluster, func(s *scheduler.State, name string) ([]scheduler.Move, error) {
		now := metav1.Now()
		return previewChange(s, name, func(c *v1alpha1.Cluster) { c.DeletionTimestamp = &now })
	})
}

func planChange(s *scheduler.State, cluster string, preview func(*scheduler.State, string) ([]scheduler.Move, error)) (*drainPlan, error) {
	before := s.Moves(s.Snapshot())
	after, err := preview(s, cluster)
	if err != nil {
		return nil, err
	}
	plan := &drainPlan{moves: caused(before, after)}
	plan.stay = staying(s, cluster, after)
	return plan, nil
}

// staying returns the objects that stay in a drained cluster. moves are those of the drain.
func staying(s *scheduler.State, cluster string, moves []scheduler.Move) (stay []blockedObject) {
	leaves := map[scheduler.Move]bool{} // by objectOf
	for i := range moves {
		if m := &moves[i]; m.Cluster == cluster && m.After == scheduler.NoShare {
			leaves[objectOf(m)] = true
		}
	}
	snap := s.Snapshot()
	for _, p := range s.Placed {
		b := s.Binding(p.Kind, p.Object.GetNamespace(), p.Object.GetName())
		o := scheduler.Move{Kind: p.Kind.GroupVersionKind.Kind, Namespace: p.Object.GetNamespace(), Name: p.Object.GetName()}
		if b == nil || leaves[o] {
			continue
		}
		if !slices.ContainsFunc(b.Decided(), func(c v1alpha1.ClusterShare) bool { return c.Name == cluster }) {
			continue
		}
		a, fresh := snap.Schedule(p.Kind, p.Object, b), snap.Schedule(p.Kind, p.Object, nil)
		if why, finished := staysBecause(&a, &fresh, cluster); !finished {
			stay = append(stay, blockedObject{o.Kind + " " + policyName(o.Namespace, o.Name), why})
		}
	}
	return stay
}

// staysBecause returns why an object stays in a cluster, and whether that is only because it finished. fresh is the
// decision about the object as if it were new, which names all other clusters.
func staysBecause(a, fresh *scheduler.Result, cluster string) (why string, finished bool) {
	if a.Choice.Err != nil {
		return invalidPolicy(a), false
	}
	_, verdicts := placement.Explain(a.Request)
	for _, v := range verdicts {
		if v.Cluster != cluster || !v.Chosen {
			continue
		}
		if v.Reason != placement.ReasonKeptNoAlternative {
			return v.Message, v.Reason == placement.ReasonKeptFinished
		}
		if others := rejections(fresh, cluster); others != "" {
			return others, false
		}
		return v.Message, false
	}
	return a.Condition.Message, false
}

// rejections returns why the other clusters do not take an object: the first three reasons with their clusters.
func rejections(fresh *scheduler.Result, cluster string) string {
	const most = 3
	_, verdicts := placement.Explain(fresh.Request)
	clusters := map[string][]string{} // by reason
	var reasons []string
	for _, v := range verdicts {
		why := v.Message
		switch {
		case v.Cluster == cluster || v.Chosen && !v.Counted:
			continue
		case v.Chosen:
			why = fmt.Sprintf("room for %d of its replicas", v.Replicas)
		}
		if clusters[why] == nil {
			reasons = append(reasons, why)
		}
		clusters[why] = append(clusters[why], v.Cluster)
	}
	var out []string
	for _, why := range reasons[:min(most, len(reasons))] {
		out = append(out, names.List(clusters[why])+": "+why)
	}
	return strings.Join(out, "; ")
}

// print prints what moves and what stays. most limits the rows of each; 0 is without limit.
func (plan *drainPlan) print(out io.Writer, most int, all string) error {
	rows := len(plan.moves)
	if most > 0 {
		rows = min(rows, most)
	}
	if rows == 0 && most > 0 { // the command does it, so that nothing "would" move
		fmt.Fprintln(out, "Nothing has to move.")
	} else if err := printMoves(out, "table", plan.moves[:rows]); err != nil {
		return err
	}
	if more := len(plan.moves) - rows; more > 0 {
		fmt.Fprintf(out, "and %d more: `%s` lists all\n", more, all)
	}
	return printStaying(out, plan.stay, most)
}

// printStaying prints the objects that stay, at most as many as most unless that is 0.
func printStaying(out io.Writer, stay []blockedObject, most int) error {
	if len(stay) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nNo other cluster takes these objects:\n")
	rows := len(stay)
	if most > 0 {
		rows = min(rows, most)
	}
	table := newTable(out)
	fmt.Fprintln(table, "OBJECT\tWHY")
	for _, o := range stay[:rows] {
		fmt.Fprintf(table, "%s\t%s\n", o.object, o.why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := len(stay) - rows; more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}
