package plan

import (
	"strings"
	"testing"
)

func TestWorkloadAddress(t *testing.T) {
	for _, version := range []string{"v1", "apps/v1", `od"d]./v1`} {
		a := WorkloadAddress("shop", version, "Deployment", "web")
		if got, kind, is := a.Workload(); !is || got != version || kind != "Deployment" {
			t.Errorf("%s: %q %q %v", a, got, kind, is)
		}
	}
	if a := WorkloadAddress("shop", "apps/v1", "Deployment", "web"); a.String() != `namespace["shop"].k8s["apps/v1"].Deployment["web"]` {
		t.Errorf("it is formatted as %s", a)
	}
	for _, typeName := range []string{"k8s_thing", "k8s", "aws_vpc", "k8s[", `k8s["v1"`, "k8s[v1].Pod"} {
		if _, _, is := (Address{Type: typeName}).Workload(); is {
			t.Errorf("%s is parsed as a workload", typeName)
		}
	}
}

// A workload is rendered with its current and planned clusters.
func TestRenderWorkload(t *testing.T) {
	one, two, three := int32(1), int32(2), int32(3)
	object := func(replicas int32, image string) map[string]any {
		return map[string]any{"spec": map[string]any{"replicas": replicas, "paused": false, "image": image}}
	}
	address := WorkloadAddress("shop", "apps/v1", "Deployment", "web")
	for _, c := range []struct {
		what Workload
		want string
	}{
		{Workload{Address: address, After: WorkloadState{Clusters: map[string]*int32{"east": &two, "west": nil}}, Detail: "no cluster → east 2, west"}, `  # k8s["apps/v1"].Deployment["web"] will be placed in clusters
  # (no cluster → east 2, west)
 -> workload "Deployment" "web" {
      + clusters = {
          + "east" = 2
          + "west" = "whole"
        }
    }
`},
		{Workload{Address: address, Before: WorkloadState{Clusters: map[string]*int32{"east": &two}, Object: object(2, "a")}, After: WorkloadState{Clusters: map[string]*int32{"east": &two, "west": &one}, Object: object(3, "a")}, Detail: "the object changes"},
			`  # k8s["apps/v1"].Deployment["web"] will be changed in clusters
  # (the object changes)
 -> workload "Deployment" "web" {
      ~ clusters = {
          + "west" = 1
            # (1 unchanged element hidden)
        }
      ~ spec     = {
          ~ replicas = 2 -> 3
            # (2 unchanged attributes hidden)
        }
    }
`},
		{Workload{Address: address, Before: WorkloadState{Clusters: map[string]*int32{"east": &three}}, Removed: true, Detail: "it was deleted: it would leave east 3"}, `  # k8s["apps/v1"].Deployment["web"] will be destroyed
  # (it was deleted: it would leave east 3)
  - workload "Deployment" "web" {
      - clusters = {
          - "east" = 3
        } -> null
    }
`},
	} {
		change, err := c.what.Change()
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := (Renderer{Namespace: "shop"}).Change(&out, change); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("rendered as\n%s\nwant\n%s", out.String(), c.want)
		}
		var counts Counts
		counts.Add(change)
		if counts.Empty() || counts.Place+counts.Delete != 1 || c.what.Removed != (counts.Delete == 1) {
			t.Errorf("counted as %+v", counts)
		}
	}
}
