package partition_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// fleetLimit is how long the fleet may take to notice a cut link, or to get over it: 30 s
// for three probes, 20 s until another leads, and what a busy machine adds.
const fleetLimit = 90 * time.Second

const linkedApp = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: linked, namespace: default}, spec: {replicas: 3, selector: {matchLabels: {app: linked}},
template: {metadata: {labels: {app: linked}}, spec: {containers: [{name: linked, image: nginx}]}}}}`

// The server that leads the fleet loses a member, and then the database. Whatever was in
// the members stays what it is; a lost member is said to be unreachable, with what helps; and what is
// wanted meanwhile arrives, after the first cut when it is healed, and during the second by
// way of another server.
func TestLinksOfTheFleet(t *testing.T) {
	s := stretched(t)
	if _, err := s.kubectl(t.Context(), "atoll-west", linkedApp, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = s.kubectl(context.Background(), "atoll-west", linkedApp, "delete", "-f", "-", "--ignore-not-found")
	})
	eventually(t, fleetLimit, "each member runs its share", func(ctx context.Context) error { return s.linked(ctx, t, "") })
	before := s.linkedUIDs(t)
	same := func(t *testing.T) {
		t.Helper()
		if now := s.linkedUIDs(t); !maps.Equal(before, now) {
			t.Errorf("the members had %v and have %v", before, now)
		}
	}

	t.Run("from the leader to a member", func(t *testing.T) {
		leader := s.leader(t)
		lost := members[slices.IndexFunc(members, func(m string) bool { return m != leader })]
		heal := s.network.cut(t, lost, leader)
		eventually(t, fleetLimit, lost+" is said to be unreachable", func(ctx context.Context) error {
			return s.ready(ctx, "atoll-"+leader, lost, v1alpha1.ReasonClusterUnreachable, "check the network between Atoll and its API server")
		})
		s.see(t, "atoll-"+leader, "cut")
		same(t)
		heal()
		eventually(t, fleetLimit, lost+" is Ready", func(ctx context.Context) error {
			return s.ready(ctx, "atoll-"+leader, lost, v1alpha1.ReasonClusterReady, "")
		})
		eventually(t, fleetLimit, "what was wanted has arrived", func(ctx context.Context) error { return s.linked(ctx, t, "cut") })
		same(t)
	})

	t.Run("from the leader to the database", func(t *testing.T) {
		leader := s.leader(t)
		other := members[slices.IndexFunc(members, func(m string) bool { return m != leader })]
		heal := s.network.cut(t, leader, databaseSite)
		s.see(t, "atoll-"+other, "apart")
		eventually(t, fleetLimit, "what was wanted has arrived", func(ctx context.Context) error { return s.linked(ctx, t, "apart") })
		same(t)
		heal()
		eventually(t, fleetLimit, "the server that led is well again", func(ctx context.Context) error {
			_, err := s.kubectl(ctx, "atoll-"+leader, "", "get", "--raw", "/readyz")
			return err
		})
		same(t)
	})
}

// see annotates the Deployment by way of a server, so that its arrival can be seen.
func (s *stage) see(t *testing.T, server, what string) {
	t.Helper()
	if _, err := s.kubectl(t.Context(), server, "", "annotate", "deployment", "linked", "--overwrite", "example.org/seen="+what); err != nil {
		t.Fatal(err)
	}
}

// linked tells whether each member has its share, annotated so.
func (s *stage) linked(ctx context.Context, t *testing.T, seen string) error {
	for _, m := range members {
		d, err := s.client(t, m).AppsV1().Deployments("default").Get(ctx, "linked", metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", m, err)
		case d.Annotations["example.org/seen"] != seen, d.Status.ReadyReplicas != 1:
			return fmt.Errorf("%s has annotations %v and %d replicas ready", m, d.Annotations, d.Status.ReadyReplicas)
		}
	}
	return nil
}

// linkedUIDs are those of the Deployment and of its Pods.
func (s *stage) linkedUIDs(t *testing.T) map[string]types.UID {
	t.Helper()
	out := map[string]types.UID{}
	for _, m := range members {
		client := s.client(t, m)
		d, err := client.AppsV1().Deployments("default").Get(t.Context(), "linked", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out[m] = d.UID
		pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=linked"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			out[m+"/"+pods.Items[i].Name] = pods.Items[i].UID
		}
	}
	return out
}

// ready tells whether a Cluster is Ready, or not, for this reason, in words with these.
func (s *stage) ready(ctx context.Context, server, cluster, reason, words string) error {
	config, err := s.rest(server)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	u, err := client.Resource(v1alpha1.ClusterResource).Get(ctx, cluster, metav1.GetOptions{})
	if err != nil {
		return err
	}
	c := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c); err != nil {
		return err
	}
	condition := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	switch {
	case condition == nil:
		return errors.New("it has no condition Ready")
	case condition.Reason != reason || !strings.Contains(condition.Message, words):
		return fmt.Errorf("it is %s: %s", condition.Reason, condition.Message)
	}
	return nil
}
