package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

func (p *preview) drain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain CLUSTER",
		Short: "Show what would move if a cluster were drained",
		Long: `Show what would move if a cluster were drained with atoll drain: it gets no new objects, and
objects that other clusters take move there. Taints and tolerations do not matter.

Objects that no other cluster takes stay. They are listed with the reasons. The preview has the
end of the drain: atoll drain moves a few objects at a time, each step by step.`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.run(cmd, func(_ context.Context, _ *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				moves, err := previewDrain(s, args[0])
				if err != nil {
					return nil, err
				}
				p.stay, p.moved = staying(s, args[0], moves), stepsOfMoves(s, moves)
				return moves, nil
			})
		},
	}
	p.addFlags(cmd.Flags())
	return cmd
}

// previewDrain returns the moves if a cluster is drained. It changes the state.
func previewDrain(s *scheduler.State, name string) ([]scheduler.Move, error) {
	return previewChange(s, name, func(c *v1alpha1.Cluster) { c.Spec.Drain = &v1alpha1.ClusterDrain{} })
}

// previewChange changes a cluster in the state, and returns what differs then from the shares that are in effect.
func previewChange(s *scheduler.State, name string, change func(*v1alpha1.Cluster)) ([]scheduler.Move, error) {
	i := slices.IndexFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == name })
	if i < 0 {
		return nil, noCluster(s, name)
	}
	changed := s.Clusters[i].DeepCopy()
	change(changed)
	s.Clusters[i] = changed
	return s.Moves(s.Snapshot()), nil
}

func noCluster(s *scheduler.State, name string) error {
	var joined []string
	for _, c := range s.Clusters {
		joined = append(joined, c.Name)
	}
	return names.NoSuchCluster(name, joined)
}
