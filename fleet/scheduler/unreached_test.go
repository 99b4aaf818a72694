package scheduler

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestUnreached: a caller that runs where a Service has no pods is told, if it names the Service.
func TestUnreached(t *testing.T) {
	service := func(name string, with, beside []string) *v1alpha1.ResourceBinding {
		b := &v1alpha1.ResourceBinding{}
		b.Namespace = "shop"
		b.Spec.Resource.APIVersion, b.Spec.Resource.Kind, b.Spec.Resource.Name = "v1", "Service", name
		for _, c := range with {
			b.Spec.Clusters = append(b.Spec.Clusters, v1alpha1.ClusterShare{Name: c, Reason: ReasonRequired})
		}
		for _, c := range beside {
			b.Spec.Clusters = append(b.Spec.Clusters, v1alpha1.ClusterShare{Name: c, Reason: ReasonConfiguration})
		}
		return b
	}
	s := &State{bindings: map[string]*v1alpha1.ResourceBinding{
		"db":    service("db", []string{"west"}, []string{"east", "north"}),
		"cache": service("cache", []string{"west"}, []string{"east"}),
		"mail":  service("mail", []string{"east", "west"}, []string{"north"}),
		"empty": service("empty", nil, []string{"east"}),
	}}
	front := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "front", "namespace": "shop"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"args": []any{"--cachet", "--mail=mail.shop.svc"}, "env": []any{map[string]any{"name": "DB", "value": "postgres://u@db:5432/shop"}, map[string]any{"name": "X", "value": "empty"}}}}}}}}}
	if got := fmt.Sprint(s.Unreached(front, []string{"east", "west"})); got != "[{db [east] [west]}]" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(s.Unreached(front, []string{"north"})); got != "[{db [north] [west]} {mail [north] [east west]}]" {
		t.Errorf("got %s", got)
	}
}
