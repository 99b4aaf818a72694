package render

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
)

func TestLegend(t *testing.T) {
	got := Renderer{}.Legend(change.Counts{Create: 1, Read: 1})
	if want := "  + create\n <= read (data sources)\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}

// A workload is rendered with its current and planned clusters.
func TestRenderWorkload(t *testing.T) {
	one, two, three := int32(1), int32(2), int32(3)
	object := func(replicas int32, image string) map[string]any {
		return map[string]any{"spec": map[string]any{"replicas": replicas, "paused": false, "image": image}}
	}
	address := change.WorkloadAddress("shop", "apps/v1", "Deployment", "web")
	for _, c := range []struct {
		what change.Workload
		want string
	}{
		{change.Workload{Address: address, After: change.WorkloadState{Clusters: map[string]*int32{"east": &two, "west": nil}}, Detail: "no cluster → east 2, west"}, `  # k8s["apps/v1"].Deployment["web"] will be placed in clusters
  # (no cluster → east 2, west)
 -> workload "Deployment" "web" {
      + clusters = {
          + "east" = 2
          + "west" = "whole"
        }
    }
`},
		{change.Workload{Address: address, Before: change.WorkloadState{Clusters: map[string]*int32{"east": &two}, Object: object(2, "a")}, After: change.WorkloadState{Clusters: map[string]*int32{"east": &two, "west": &one}, Object: object(3, "a")}, Detail: "the object changes"},
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
		{change.Workload{Address: address, Before: change.WorkloadState{Clusters: map[string]*int32{"east": &three}}, Removed: true, Detail: "it was deleted: it would leave east 3"}, `  # k8s["apps/v1"].Deployment["web"] will be destroyed
  # (it was deleted: it would leave east 3)
  - workload "Deployment" "web" {
      - clusters = {
          - "east" = 3
        } -> null
    }
`},
	} {
		planned, err := c.what.Change()
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := (Renderer{Namespace: "shop"}).Change(&out, planned); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("rendered as\n%s\nwant\n%s", out.String(), c.want)
		}
		var counts change.Counts
		counts.Add(planned)
		if counts.Empty() || counts.Place+counts.Delete != 1 || c.what.Removed != (counts.Delete == 1) {
			t.Errorf("counted as %+v", counts)
		}
	}
}
