package apiserver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func podMetrics(t *testing.T) metricsElsewhere {
	t.Helper()
	scheme, err := metricsScheme()
	if err != nil {
		t.Fatal(err)
	}
	info, err := (&metricsGroup{scheme: scheme}).NewRESTStorage(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return info.VersionedResourcesStorageMap["v1beta1"]["pods"].(metricsElsewhere)
}

// TestMetricsTable: a table has a column for each resource in any of the rows, and sums the containers.
func TestMetricsTable(t *testing.T) {
	t.Parallel()
	container := func(usage ...string) (c metricsv1beta1.ContainerMetrics) {
		c.Usage = corev1.ResourceList{}
		for i := 0; i < len(usage); i += 2 {
			c.Usage[corev1.ResourceName(usage[i])] = resource.MustParse(usage[i+1])
		}
		return c
	}
	list := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1alpha1.ClusterLabel: "east"}},
			Containers: []metricsv1beta1.ContainerMetrics{container("cpu", "10m"), container("cpu", "20m")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Containers: []metricsv1beta1.ContainerMetrics{container("memory", "1Gi")}},
	}}
	table, err := podMetrics(t).ConvertToTable(t.Context(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	if got := fmt.Sprint(columns, table.Rows[0].Cells, table.Rows[1].Cells); got != "[Name cpu memory Window Cluster] [a 30m 0 0s east] [b 0 1Gi 0s ]" {
		t.Error(got)
	}
	if usage := list.Items[0].Containers[0].Usage.Cpu().String(); usage != "10m" {
		t.Errorf("the table changed the metrics: %s", usage)
	}
}

// TestMetricsOfControllers: the controllers of this server see no metrics, and no user can write or watch them.
func TestMetricsOfControllers(t *testing.T) {
	t.Parallel()
	storage := podMetrics(t) // without clusters
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "atoll:fleet"})
	list, err := storage.List(ctx, nil)
	if err != nil || meta.LenList(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := storage.Get(ctx, "a", nil); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	var all rest.Storage = storage
	_, watches := all.(rest.Watcher)
	_, deletes := all.(rest.GracefulDeleter)
	_, creates := all.(rest.Creater)
	if watches || deletes || creates {
		t.Errorf("watch %v, delete %v, create %v", watches, deletes, creates)
	}
}
