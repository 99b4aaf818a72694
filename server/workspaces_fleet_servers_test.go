package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// leader returns the index of the elected server among some, once one of them is.
func (s *servers) leader(among ...int) (leads int) {
	s.t.Helper()
	within(s.t, 2*time.Minute, "a server is elected", func(ctx context.Context) error {
		lease, err := s.all[among[0]].client(s.t).CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(ctx, "atoll-tenancy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder := ""
		if lease.Spec.HolderIdentity != nil {
			holder = *lease.Spec.HolderIdentity
		}
		for _, i := range among {
			if leads = i; s.all[i].Name() == holder {
				return nil
			}
		}
		return fmt.Errorf("%q is elected", holder)
	})
	return leads
}

// deletions are those of a fake cluster, except for Events and Leases.
type deletions struct {
	mu  sync.Mutex
	all []string
}

func (d *deletions) record(r fakeapi.Request) *metav1.Status {
	if r.Verb == "delete" && !slices.Contains([]string{"events", "leases"}, r.Resource.Resource) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, fmt.Sprintf("%s %s/%s", r.Resource.Resource, r.Namespace, r.Name))
	}
	return nil
}

func (d *deletions) check(t *testing.T, when string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) > 0 {
		t.Errorf("%s, the fleet has removed %v", when, d.all)
	}
}

// imageOf returns the image of a Deployment in a cluster, "" if it is not there.
func imageOf(member *fakeapi.Server, name string) string {
	u := member.Get(deployments, "default", name)
	if u == nil {
		return ""
	}
	return imageIn(u)
}

func imageIn(u *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if len(containers) == 0 {
		return ""
	}
	image, _, _ := unstructured.NestedString(containers[0].(map[string]any), "image")
	return image
}

// TestWorkspaceFleetOfServers: a workspace's cluster joins by one server, and a Deployment is created by another one. When the elected server is
// stopped, and when the next one loses its database, another one continues the fleet. Meanwhile nothing is removed from the cluster, and a server
// that is back does not undo changes that were made without it.
func TestWorkspaceFleetOfServers(t *testing.T) {
	s := newServers(t, 3, func(cfg *server.Config) { cfg.WorkspaceMemberNetworks = loopbackMembers() })
	s.all[0].createWorkspace(t, "team")
	member, removed := measured(t), &deletions{}
	member.OnRequest(removed.record)
	in := func(i int) atoll { return s.all[i].in("team") }
	in(0).joinMember(t, "east", member.Member())
	eventually(t, "server 1 serves the workspace", func(context.Context) error {
		out, err := in(1).kubectl(t, "", "create", "deployment", "web", "--image=web:1")
		if err != nil {
			return errors.New(out)
		}
		return nil
	})
	in(1).awaitPlaced(t, member, "default", "web")
	claim := func() string {
		lease := member.Get(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "kube-system", v1alpha1.ClaimLease)
		if lease == nil {
			return ""
		}
		holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
		return holder
	}
	holder := claim()
	updated := func(by int, image, when string) {
		t.Helper()
		in(by).mustKubectl(t, "", "set", "image", "deployment/web", "web="+image)
		within(t, 2*time.Minute, "the fleet continues "+when, func(context.Context) error {
			if got := imageOf(member, "web"); got != image {
				out, _ := in(by).kubectl(t, "", "get", "clusters,resourcebindings", "-o", "yaml")
				return fmt.Errorf("the cluster has the image %s\n%s", got, out)
			}
			return nil
		})
		removed.check(t, when)
		if now := claim(); now != holder || holder == "" {
			t.Errorf("%s, the cluster belongs to %q, not to %q", when, now, holder)
		}
	}

	first := s.leader(0, 1, 2)
	rest := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == first })
	if err := s.stops[first](); err != nil {
		t.Error(err)
	}
	updated(rest[0], "web:2", "after the elected server was stopped")

	second := s.leader(rest...)
	last := rest[0]
	if last == second {
		last = rest[1]
	}
	s.links[second].Freeze()
	if got := s.leader(last); got != last {
		t.Fatal(got)
	}
	updated(last, "web:3", "after the elected server lost its database")
	s.links[second].Thaw()
	eventually(t, "the server is back", func(ctx context.Context) error {
		_, err := s.all[second].in("team").client(t).CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	in(second).mustKubectl(t, "", "create", "deployment", "other", "--image=web:1")
	in(second).awaitPlaced(t, member, "default", "other")
	if got := imageOf(member, "web"); got != "web:3" {
		t.Errorf("when the server is back, the cluster has the image %s", got)
	}
	removed.check(t, "when the server is back")
	in(last).mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	if member.Get(deployments, "default", "web") != nil {
		t.Error("the cluster has left, and the Deployment is still there")
	}
}
