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

// fleetLimit limits how long the fleet may take to notice a cut link, or to recover from it: 30 s for three
// probes, 20 s until another server leads, and the delay of a busy machine.
const fleetLimit = 90 * time.Second

const linkedApp = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: linked, namespace: default}, spec: {replicas: 3, selector: {matchLabels: {app: linked}},
template: {metadata: {labels: {app: linked}}, spec: {containers: [{name: linked, image: nginx}]}}}}`

// TestFleetLinksCut cuts the server that leads the fleet off from a member, and then from the database.
// Objects in the members keep their UIDs. The lost member is reported as unreachable, with a remedy. Changes
// made meanwhile arrive: after the first cut, and during the second through another server.
func TestFleetLinksCut(t *testing.T) {
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
		eventually(t, fleetLimit, lost+" is reported as unreachable", func(ctx context.Context) error {
			return s.ready(ctx, "atoll-"+leader, lost, v1alpha1.ReasonClusterUnreachable, "check the network between Atoll and its API server")
		})
		s.annotate(t, "atoll-"+leader, "cut")
		same(t)
		heal()
		eventually(t, fleetLimit, lost+" is Ready", func(ctx context.Context) error {
			return s.ready(ctx, "atoll-"+leader, lost, v1alpha1.ReasonClusterReady, "")
		})
		eventually(t, fleetLimit, "the change has arrived", func(ctx context.Context) error { return s.linked(ctx, t, "cut") })
		same(t)
	})

	t.Run("from the leader to the database", func(t *testing.T) {
		leader := s.leader(t)
		other := members[slices.IndexFunc(members, func(m string) bool { return m != leader })]
		heal := s.network.cut(t, leader, databaseSite)
		s.annotate(t, "atoll-"+other, "apart")
		eventually(t, fleetLimit, "the change has arrived", func(ctx context.Context) error { return s.linked(ctx, t, "apart") })
		same(t)
		heal()
		eventually(t, fleetLimit, "the former leader is ready again", func(ctx context.Context) error {
			_, err := s.kubectl(ctx, "atoll-"+leader, "", "get", "--raw", "/readyz")
			return err
		})
		same(t)
	})
}

// annotate changes an annotation of the Deployment through a server. The change must arrive in the members.
func (s *stage) annotate(t *testing.T, server, value string) {
	t.Helper()
	if _, err := s.kubectl(t.Context(), server, "", "annotate", "deployment", "linked", "--overwrite", "example.org/seen="+value); err != nil {
		t.Fatal(err)
	}
}

// linked returns an error unless each member has its share of the Deployment, with this annotation.
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

// linkedUIDs returns the UIDs of the Deployment and of its Pods.
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

// ready returns an error unless the condition Ready of a Cluster has this reason, and words in its message.
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
		return errors.New("no condition Ready")
	case condition.Reason != reason || !strings.Contains(condition.Message, words):
		return fmt.Errorf("condition Ready: %s: %s", condition.Reason, condition.Message)
	}
	return nil
}
