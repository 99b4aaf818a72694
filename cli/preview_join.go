package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

func (p *preview) join() *cobra.Command {
	var (
		labels map[string]string
		cpu    string
	)
	cmd := &cobra.Command{
		Use:     "join CLUSTER",
		Short:   "Show what would move if a cluster joined",
		Example: `  atoll preview join south --labels topology.kubernetes.io/region=eu --cpu 64`,
		Args:    oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.run(cmd, func(_ context.Context, _ *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				return previewJoin(s, args[0], labels, cpu)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringToStringVar(&labels, "labels", nil, "Labels of the new Cluster.")
	flags.StringVar(&cpu, "cpu", "", "CPUs of the new Cluster, for policies that consider capacity.")
	p.addFlags(flags)
	return cmd
}

func previewJoin(s *scheduler.State, name string, labels map[string]string, cpu string) ([]scheduler.Move, error) {
	if slices.ContainsFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == name }) {
		return nil, fmt.Errorf("cluster %s has already joined: use the name of a new cluster. To preview its removal, run `atoll preview drain %s`", name, name)
	}
	joined := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(s.At)}}
	joined.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonClusterReady,
		LastTransitionTime: metav1.NewTime(s.At)}}
	if cpu != "" {
		q, err := resource.ParseQuantity(cpu)
		if err != nil {
			return nil, fmt.Errorf("--cpu %s: %w", cpu, err)
		}
		joined.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: q}
	}
	s.Clusters = append(s.Clusters, joined)
	return s.Moves(s.Snapshot()), nil
}
